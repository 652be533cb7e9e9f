package client

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"borg/proto/borgpb"
	"borg/proto/door"
)

// RefusedError is an op that the cell did not do, and why.
type RefusedError struct {
	Refusal *borgpb.Refusal
	// Position of the op among those that Validate asked about; else zero.
	At int
}

func (e *RefusedError) Error() string {
	r := e.Refusal
	var b strings.Builder
	if r.Object != "" {
		b.WriteString(r.Object + ": ")
	}
	if r.Message != "" {
		b.WriteString(r.Message)
	} else {
		b.WriteString(e.Word())
	}
	if r.Field != "" {
		fmt.Fprintf(&b, " (%s)", r.Field)
	}
	return b.String()
}

// Word is the kind of the refusal as one word: "conflict", "not_found".
func (e *RefusedError) Word() string {
	return strings.ToLower(strings.TrimPrefix(e.Refusal.Kind.String(), "REFUSAL_KIND_"))
}

// refused returns the result's refusal as an error.
func refused(r *borgpb.Result) error {
	if r.GetRefusal() == nil {
		return nil
	}
	return &RefusedError{Refusal: r.Refusal}
}

// NotFoundError is an answer that there is no such object.
type NotFoundError struct{ Message string }

func (e *NotFoundError) Error() string { return e.Message }

// NotAllowedError is an answer that the caller may not do this.
type NotAllowedError struct {
	Message string
	// The caller's certificate was revoked: all calls with it are refused.
	Revoked bool
}

func (e *NotAllowedError) Error() string { return e.Message }

// DistrustedError says that the masters and we do not believe each other's
// certificates.
type DistrustedError struct{ Message string }

func (e *DistrustedError) Error() string { return e.Message }

// InvalidError is an answer that the request makes no sense.
type InvalidError struct{ Message string }

func (e *InvalidError) Error() string { return e.Message }

// StateError is an answer that the request cannot be done as things are.
type StateError struct{ Message string }

func (e *StateError) Error() string { return e.Message }

// AnswerError is any other error that a master answered.
type AnswerError struct {
	What    string
	Code    codes.Code
	Message string
}

func (e *AnswerError) Error() string { return e.What + ": " + e.Message }

// Away reports whether the master was not there to answer.
func (e *AnswerError) Away() bool {
	return e.Code == codes.Unavailable || e.Code == codes.DeadlineExceeded
}

// OtherCellError says that the masters at the known addresses are those of
// another cell.
type OtherCellError struct {
	Want, Got, GotName string
}

func (e *OtherCellError) Error() string {
	return fmt.Sprintf("the masters at these addresses are those of cell %q with id %s, not of the cell with id %s", e.GotName, e.Got, e.Want)
}

// UnreachableError says that no replica gave an answer.
type UnreachableError struct {
	What string
	// How long it was tried.
	After time.Duration
	// Last error of each replica.
	Replicas map[string]error
	// At least one replica was reached, and could not serve: nobody is elected,
	// or it is too busy.
	Answered bool
	// A try may have been done although no answer came.
	Unknown bool
}

func (e *UnreachableError) Error() string {
	var b strings.Builder
	if e.Answered {
		fmt.Fprintf(&b, "%s: no master could serve it within %v", e.What, e.After.Round(10*time.Millisecond))
	} else {
		fmt.Fprintf(&b, "%s: none of the cell's masters could be reached within %v", e.What, e.After.Round(10*time.Millisecond))
	}
	addrs := make([]string, 0, len(e.Replicas))
	for a := range e.Replicas {
		addrs = append(addrs, a)
	}
	sort.Strings(addrs)
	for _, a := range addrs {
		fmt.Fprintf(&b, "\n  %s: %s", a, plain(e.Replicas[a]))
	}
	return b.String()
}

// plain is the text of a gRPC error without its wrapping, and without the address, which
// is told beside it.
func plain(err error) string {
	text := door.Reason(err)
	if dial, ok := strings.CutPrefix(text, "dial tcp "); ok {
		_, text, _ = strings.Cut(dial, ": ")
	}
	return text
}

// BrokenStreamError says that an answer ended in the middle.
type BrokenStreamError struct {
	What string
	Err  error
}

func (e *BrokenStreamError) Error() string {
	return fmt.Sprintf("%s: the answer broke off: %s", e.What, plain(e.Err))
}

func (e *BrokenStreamError) Unwrap() error { return e.Err }

// gaveUp is the error after the last try.
func (c *Client) gaveUp(ctx context.Context, what string, began time.Time, failed map[string]error) error {
	if cause := context.Cause(ctx); errors.Is(cause, context.Canceled) {
		return fmt.Errorf("%s: %w", what, cause)
	}
	e := &UnreachableError{What: what, After: time.Since(began), Replicas: failed}
	for _, r := range c.all() {
		err := failed[r.addr]
		if err == nil {
			continue
		}
		s, _ := status.FromError(err)
		quiet := s.Code() == codes.DeadlineExceeded || s.Code() == codes.Canceled
		dialled := !strings.Contains(s.Message(), "connection error")
		// A master that waits for somebody to be elected holds the connection
		// and says nothing.
		e.Answered = e.Answered || (dialled && !quiet) || (quiet && r.conn.GetState() == connectivity.Ready)
		e.Unknown = e.Unknown || dialled
	}
	return e
}

// answer maps what a master answered to a typed error.
func answer(what string, err error) error {
	if err == nil {
		return nil
	}
	s, ok := status.FromError(err)
	if !ok {
		return fmt.Errorf("%s: %w", what, err)
	}
	if door.Distrusted(err) {
		return &DistrustedError{door.Reason(err)}
	}
	switch s.Code() {
	case codes.NotFound:
		return &NotFoundError{s.Message()}
	case codes.PermissionDenied, codes.Unauthenticated:
		return &NotAllowedError{s.Message(), door.IsRevoked(err)}
	case codes.InvalidArgument, codes.OutOfRange:
		return &InvalidError{s.Message()}
	case codes.FailedPrecondition:
		return &StateError{s.Message()}
	default:
		message := door.Reason(err)
		if s.Code() == codes.Unimplemented && strings.HasPrefix(message, "unknown ") {
			message = "the master is of another version and does not know how"
		}
		return &AnswerError{What: what, Code: s.Code(), Message: message}
	}
}

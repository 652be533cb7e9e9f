package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"testing"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/client"
	"borg/cfg"
	"borg/cli"
	"borg/proto/borgpb"
)

// Every kind of error has its exit code, however deep it is wrapped.
func TestExitCodes(t *testing.T) {
	refused := func(k borgpb.RefusalKind) error {
		return &client.RefusedError{Refusal: &borgpb.Refusal{Kind: k, Message: "no"}}
	}
	for _, tc := range []struct {
		err  error
		want int
	}{
		{cfg.Faults{{What: "no"}}, cli.Invalid},
		{refused(borgpb.RefusalKind_REFUSAL_KIND_CONFLICT), cli.Conflict},
		{refused(borgpb.RefusalKind_REFUSAL_KIND_STALE), cli.Conflict},
		{refused(borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS), cli.Conflict},
		{refused(borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND), cli.NotFound},
		{refused(borgpb.RefusalKind_REFUSAL_KIND_QUOTA), cli.Refused},
		{refused(borgpb.RefusalKind_REFUSAL_KIND_LIMIT), cli.Refused},
		{refused(borgpb.RefusalKind_REFUSAL_KIND_STATE), cli.Refused},
		{refused(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION), cli.NotAllowed},
		{refused(borgpb.RefusalKind_REFUSAL_KIND_INTERNAL), cli.Failed},
		{&client.NotFoundError{Message: "no"}, cli.NotFound},
		{&client.NotAllowedError{Message: "no"}, cli.NotAllowed},
		{&client.StateError{Message: "no"}, cli.Refused},
		{&client.InvalidError{Message: "no"}, cli.Refused},
		{&client.AnswerError{Message: "no"}, cli.Failed},
		{&client.UnreachableError{}, cli.Unreachable},
		{&client.BrokenStreamError{Err: errors.New("no")}, cli.Unreachable},
		{&client.OtherCellError{}, cli.Conflict},
		{&client.NoCellError{}, cli.Invalid},
		{cli.Errorf(cli.Changes, "changes"), cli.Changes},
		{errors.New("anything else"), cli.Failed},
	} {
		s := &session{ctx: context.Background(), place: &client.Place{}, flag: ucli.NewContext(nil, flag.NewFlagSet("", 0), nil)}
		var got *cli.Error
		if err := s.explain(fmt.Errorf("wrapped: %w", tc.err)); !errors.As(err, &got) || got.Code != tc.want {
			t.Errorf("%T %v: %+v, want exit code %d", tc.err, tc.err, got, tc.want)
		}
	}
}

package borgmaster

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/admission"
	"borg/proto/borgpb"
)

// TestRefusedIsNotDone: to a user who was turned away, changes that the elected master takes
// allow more changes at once, and changes that it refuses do not.
func TestRefusedIsNotDone(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		allow int
	}{{"taken", nil, 5}, {"refused", status.Error(codes.ResourceExhausted, "full"), 4}} {
		t.Run(c.name, func(t *testing.T) {
			now := int64(time.Second)
			a := newAdmitter(admission.Config{}, func() int64 { return now })
			defer a.close()
			a.core.Close(now, "alice", admission.Elsewhere("alice", "full", 2e8))
			now += 201e6
			for range 4 {
				_, err := a.write("alice", 10, func() (*borgpb.Result, error) { return nil, c.err })
				if err != c.err {
					t.Fatalf("got %v, want %v", err, c.err)
				}
			}
			begun := 0
			for begun < 100 && a.core.Begin(now, "alice", 10) == nil {
				begun++
			}
			if begun != c.allow {
				t.Errorf("%d changes may be under way, want %d", begun, c.allow)
			}
		})
	}
}

package client

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgrpc"
)

// TestWatchFilesGoesOn: over replicas that go away and that say we are too slow, each
// change is told once, and what was missed as what came of it.
func TestWatchFilesGoesOn(t *testing.T) {
	file := func(name string, version uint64) *borgrpc.FileChange {
		return &borgrpc.FileChange{File: &borgrpc.FileStatus{Name: name, Version: version}}
	}
	gone := func(name string, version uint64) *borgrpc.FileChange {
		one := file(name, version)
		one.Deleted = true
		return one
	}
	state := func(more bool, files ...*borgrpc.FileChange) *borgrpc.WatchFilesResponse {
		return &borgrpc.WatchFilesResponse{State: true, More: more, Changes: files}
	}
	news := func(changes ...*borgrpc.FileChange) *borgrpc.WatchFilesResponse {
		return &borgrpc.WatchFilesResponse{Changes: changes}
	}
	says := func(end codes.Code, list ...*borgrpc.WatchFilesResponse) func(func(*borgrpc.WatchFilesResponse) error) error {
		return func(send func(*borgrpc.WatchFilesResponse) error) error {
			for _, resp := range list {
				if err := send(resp); err != nil {
					return err
				}
			}
			return status.Error(end, "so it ends")
		}
	}
	// Whichever is asked goes on where the one before has ended.
	rounds := []func(func(*borgrpc.WatchFilesResponse) error) error{
		says(codes.Unavailable, state(true, file("a", 1)), state(false, file("b", 2)), news(file("a", 3)), news(gone("b", 4))),
		// A state that breaks off in the middle says nothing.
		says(codes.Unavailable, state(true, file("a", 3))),
		says(codes.Aborted, state(false, file("a", 3), file("c", 6), file("d", 5)), news(file("c", 7))),
		says(codes.Aborted, state(true, file("a", 8)), state(false, file("d", 5)), news(file("end", 9))),
	}
	var mu sync.Mutex
	next := func(send func(*borgrpc.WatchFilesResponse) error) error {
		mu.Lock()
		round := rounds[0]
		rounds = rounds[1:]
		mu.Unlock()
		return round(send)
	}
	first, second := startMaster(t), startMaster(t)
	first.files, second.files = next, next
	c := newClient(t, Config{Masters: []string{first.addr, second.addr}, Identity: source(t, identity.User, "alice")})
	enough := errors.New("enough")
	var got []string
	err := c.WatchFiles(t.Context(), &borgrpc.WatchFilesRequest{}, func(state bool, changes []*borgrpc.FileChange) error {
		if state {
			got = append(got, "state")
		}
		for _, one := range changes {
			word := fmt.Sprintf("%s@%d", one.File.Name, one.File.Version)
			if one.Deleted {
				word += " deleted"
			}
			if got = append(got, word); one.File.Name == "end" {
				return enough
			}
		}
		return nil
	})
	want := []string{"state", "a@1", "b@2", "a@3", "b@4 deleted", "d@5", "c@6", "c@7", "a@8", "c@0 deleted", "end@9"}
	if !errors.Is(err, enough) || !slices.Equal(got, want) {
		t.Errorf("told %q, %v; want %q", got, err, want)
	}
}

package borgmaster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster"
	"borg/borgmaster/audit"
	"borg/borgmaster/journal"
	"borg/identity"
	"borg/proto/borgrpc"
	"borg/tell/hostpath"
)

// brokenPast is a past in a directory that cannot be read.
type brokenPast struct{ dir string }

func (p brokenPast) Kept() (*borgrpc.ListCheckpointsResponse, error) {
	return nil, fmt.Errorf("open the archive %s: %w", p.dir, &fs.PathError{Op: "open", Path: "/elsewhere/secret/archive", Err: syscall.EACCES})
}

func (p brokenPast) Checkpoint(context.Context, io.Writer) (uint64, error) { return 0, fs.ErrInvalid }

func (p brokenPast) OpenKept(uint64, int64) (io.ReadCloser, uint64, int64, error) {
	// A library's error: a text, and no path in its type.
	return nil, 0, 0, errors.New("pebble: " + filepath.Join(p.dir, "000012.sst") + " is damaged")
}

// TestNoAnswerNamesPathsOfTheMaster provokes failures of a master's disk through its
// door. No answer contains the path of one of its directories.
func TestNoAnswerNamesPathsOfTheMaster(t *testing.T) {
	dir := t.TempDir()
	var kept *journal.Journal
	tc := newCell(t, 1, func(replica int, c *borgmaster.Config) {
		trail, err := audit.Open(audit.Config{Dir: filepath.Join(dir, "audit"), Replica: uint64(replica)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { trail.Close() })
		events, err := journal.Open(journal.Config{Dir: filepath.Join(dir, "events"), Replica: uint64(replica)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { events.Close() })
		c.Audit, c.Journal, c.Past, c.Checkpoints = trail, events, brokenPast{dir}, brokenPast{dir}
		kept = events
		c.KeepAuthority = func([]byte) error { return os.WriteFile(filepath.Join(dir, "no", "authority"), nil, 0o600) }
		c.HostPaths = hostpath.New(dir)
	})
	tc.hasUsers()
	tc.must(tc.client(1, "alice"), submit(t, "alice", "web", 1))
	for deadline := time.Now().Add(time.Minute); kept.Stats().Files == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no events are written")
		}
	}
	if err := os.RemoveAll(filepath.Join(dir, "audit")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "events")); err != nil {
		t.Fatal(err)
	}
	root, ctx := tc.conn(1, identity.User, "root"), t.Context()
	for _, tt := range []struct {
		what string
		call func() (answer any, err error)
	}{
		{"the archive", func() (any, error) {
			return borgrpc.NewCheckpointServiceClient(root).ListCheckpoints(ctx, &borgrpc.ListCheckpointsRequest{})
		}},
		{"a kept checkpoint", func() (any, error) {
			stream, err := borgrpc.NewCheckpointServiceClient(root).SaveCheckpoint(ctx, &borgrpc.SaveCheckpointRequest{Index: 1})
			if err != nil {
				return nil, err
			}
			return stream.Recv()
		}},
		{"the authority", func() (any, error) {
			return borgrpc.NewAuthorityServiceClient(root).ReplaceAuthority(ctx, &borgrpc.ReplaceAuthorityRequest{OverlapNs: int64(time.Hour)})
		}},
		{"the audit", func() (any, error) {
			stream, err := borgrpc.NewAuditServiceClient(root).Audit(ctx, &borgrpc.AuditRequest{})
			if err != nil {
				return nil, err
			}
			return stream.Recv()
		}},
		{"the history", func() (any, error) {
			stream, err := borgrpc.NewHistoryServiceClient(root).History(ctx, &borgrpc.HistoryRequest{})
			if err != nil {
				return nil, err
			}
			return stream.Recv()
		}},
	} {
		answer, err := tt.call()
		told := fmt.Sprint(answer, err)
		if strings.Contains(told, dir) || strings.Contains(told, "/elsewhere") || strings.Contains(told, os.TempDir()+"/") {
			t.Errorf("%s: the answer names a path of the master: %s", tt.what, told)
		}
		if err != nil && status.Code(err) != codes.Internal {
			t.Errorf("%s: %v, want Internal", tt.what, err)
		}
		if err == nil && !strings.Contains(told, "[host]") {
			t.Errorf("%s did not fail: %s", tt.what, told)
		}
	}
}

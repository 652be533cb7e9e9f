package borglet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestReportsNamePathsOfNoMachine provokes failures of a machine. What the borglet reports
// of them names none of its directories, and still what the task itself knows.
func TestReportsNamePathsOfNoMachine(t *testing.T) {
	for _, tt := range []struct {
		what string
		fail func(dir string) func(*Launch) error
		want string
	}{
		{"a start of the operating system's", func(string) func(*Launch) error {
			return func(*Launch) error {
				return fmt.Errorf("start: %w", &fs.PathError{Op: "fork/exec", Path: "/opt/secret/borglet", Err: syscall.ENOMEM})
			}
		}, "start: fork/exec [host]/borglet: cannot allocate memory"},
		{"a start with a text of a library's", func(dir string) func(*Launch) error {
			return func(l *Launch) error {
				return errors.New("mount \"" + filepath.Join(l.Dir, "rootfs") + "\" at \"/data\": no space")
			}
		}, `mount "[host]/rootfs" at "/data": no space`},
		{"a refusal", func(dir string) func(*Launch) error {
			return func(l *Launch) error {
				l.Refused = "start \"/bin/x\": no such program in " + filepath.Join(dir, "packages", "ab")
				return nil
			}
		}, `start "/bin/x": no such program in [host]/ab`},
		{"a cgroup", func(string) func(*Launch) error {
			return func(*Launch) error { return errors.New("write /sys/fs/cgroup/borg/m1/c/memory.max: invalid") }
		}, "write [host]: invalid"},
	} {
		dir := t.TempDir()
		a := startAgent(t, dir)
		a.fake.Refuse = tt.fail(dir)
		want := wanted(ID{"1-5-0", 0, 1})
		want.Kind = borgpb.JobKind_JOB_KIND_BATCH
		resp := a.until(&borgrpc.PollRequest{Fence: fence(1, 4, 100), Desired: []*borgrpc.Desired{want}}, allIn(borgpb.AttemptState_ATTEMPT_STATE_FAILED))
		told := fmt.Sprint(resp)
		if strings.Contains(told, dir) || strings.Contains(told, "/opt/secret") || strings.Contains(told, "/sys/fs") {
			t.Errorf("%s: the report names a path of the machine: %s", tt.what, told)
		}
		if r := resp.Tasks[0]; !strings.Contains(r.GetExit().GetError()+r.GetText(), tt.want) {
			t.Errorf("%s is reported as %v, want %s", tt.what, r, tt.want)
		}
		a.stop()
	}
}

// TestCallsNamePathsOfNoMachine: the borglet's own calls fail without a path, too.
func TestCallsNamePathsOfNoMachine(t *testing.T) {
	dir := t.TempDir()
	a := startAgent(t, dir)
	id := ID{"1-5-0", 0, 1}
	a.until(&borgrpc.PollRequest{Fence: fence(1, 4, 100), Desired: []*borgrpc.Desired{wanted(id)}}, allIn(running1))
	// Its output is a directory, which cannot be read as a file.
	for _, name := range []string{"stdout", "stderr"} {
		path := filepath.Join(a.agent.store.TaskDir(id), name)
		if err := errors.Join(os.RemoveAll(path), os.MkdirAll(filepath.Join(path, "x"), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	err := a.server.ReadLog(&borgrpc.ReadLogRequest{Copy: id.wire()}, logCall{ctx: t.Context()})
	if err == nil || strings.Contains(err.Error(), dir) {
		t.Errorf("the log is read, or the answer names a path of the machine: %v", err)
	}
}

// logCall is a call that nobody hears the answers of.
type logCall struct {
	borgrpc.BorgletService_ReadLogServer
	ctx context.Context
}

func (c logCall) Context() context.Context            { return c.ctx }
func (c logCall) Send(*borgrpc.ReadLogResponse) error { return nil }

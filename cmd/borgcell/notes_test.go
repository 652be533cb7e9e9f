package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestTasksNote: a task in its container, with the certificate and the attempt that it
// was given and nothing else, says what it is at, which is shown with it; and what
// another copy would say is refused.
func TestTasksNote(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 1, 1)
	spec := sleepers(1)
	// What runs borgcfg needs more memory than a shell: once in a while 16 MiB were all used.
	spec.Task.Resources.MemBytes = 64 << 20
	spec.Task.Mounts = []*borgpb.Mount{{Source: c.binDir, Path: c.binDir}}
	// The cell may not be of the format that has notes yet.
	spec.Task.Args = []string{"/bin/sh", "-c", fmt.Sprintf(`b=%s
until $b note 'shard 7 of 9' --annotation shard=7; do sleep 0.2; done
BORG_ATTEMPT=2 $b note 'not me' && echo taken
until $b note 'shard 7 of 9, refused: no other copy' --annotation shard=7; do sleep 0.2; done
exec sleep 1000000`, filepath.Join(c.binDir, "borgcfg"))}
	c.run(t, "web", spec)
	waitFor(t, "the task has said what it is at", func() string {
		resp, err := c.client.ListTasks(shortly(t), &borgrpc.ListTasksRequest{User: c.user, Name: "web"})
		if err != nil || len(resp.Tasks) != 1 {
			return fmt.Sprintf("%v, %v", resp, err)
		}
		if st := resp.Tasks[0].Status; st.Note != "shard 7 of 9, refused: no other copy" || st.NoteAnnotations["shard"] != "7" {
			return fmt.Sprintf("it says %q %v; and writes\n%s", st.Note, st.NoteAnnotations, c.output(t, "web"))
		}
		return ""
	})
	if out := c.output(t, "web"); strings.Contains(out, "taken") {
		t.Errorf("a copy that is none was heard:\n%s", out)
	}
}

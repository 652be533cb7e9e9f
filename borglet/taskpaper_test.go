package borglet

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestTaskPaper: a task reads its limits, priority, labels and annotations in a file that is
// replaced when they change in place, also by the next borglet; what it holds is reported,
// so that it is not sent again.
func TestTaskPaper(t *testing.T) {
	issuer := &fakeIssuer{life: time.Hour}
	dir, papersDir := t.TempDir(), t.TempDir()
	start := func() *agentUnderTest {
		return startAgentWith(t, dir, func(c *Config) { c.PapersDir, c.Issuer = papersDir, issuer })
	}
	a := start()
	id := ID{JobUID: "1-5-0", Attempt: 1}
	want := wanted(id)
	want.Kind, want.Priority, want.Spec.Resources = borgpb.JobKind_JOB_KIND_SERVICE, 200, &borgpb.Resources{CpuMilli: 500, MemBytes: 64 << 20}
	want.LabelMark, want.Labels = 7, &borgrpc.TaskLabels{Labels: map[string]string{"tier": "web"}, Annotations: map[string]string{"note": "a"}}
	poll := func(d *borgrpc.Desired, mark uint64) {
		t.Helper()
		a.until(&borgrpc.PollRequest{Fence: fence(1, 4, 100), Desired: []*borgrpc.Desired{d}}, func(r *borgrpc.PollResponse) bool {
			return allIn(borgpb.AttemptState_ATTEMPT_STATE_RUNNING)(r) && len(r.LabelMarks) == 1 && r.LabelMarks[0] == mark && r.Versions[0] == d.Version
		})
	}
	reads := func(what string, ok func(taskPaper) bool) {
		t.Helper()
		var got taskPaper
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			got = taskPaper{}
			text, err := os.ReadFile(filepath.Join(a.agent.papers.path(id), TaskPaper))
			if err == nil && json.Unmarshal(text, &got) == nil && ok(got) {
				return
			}
		}
		t.Fatalf("%s: the file says %+v", what, got)
	}
	poll(want, 7)
	reads("at the start", func(p taskPaper) bool {
		return p.Kind == "service" && p.Priority == 200 && p.Limits.MemBytes == 64<<20 && p.Limits.CPUMilli == 500 && p.Labels["tier"] == "web" && p.Annotations["note"] == "a"
	})
	// Other labels alone come without a spec.
	bare := proto.CloneOf(want)
	bare.Spec, bare.LabelMark, bare.Labels = nil, 8, &borgrpc.TaskLabels{Labels: map[string]string{"tier": "db"}}
	poll(bare, 8)
	reads("other labels", func(p taskPaper) bool {
		return maps.Equal(p.Labels, map[string]string{"tier": "db"}) && len(p.Annotations) == 0 && p.Limits.MemBytes == 64<<20
	})
	// Other limits come without labels, which stay.
	larger := proto.CloneOf(want)
	larger.Version, larger.Priority, larger.Spec.Resources.MemBytes, larger.LabelMark, larger.Labels = 2, 210, 128<<20, 8, nil
	poll(larger, 8)
	reads("other limits", func(p taskPaper) bool {
		return p.Version == 2 && p.Priority == 210 && p.Limits.MemBytes == 128<<20 && p.Labels["tier"] == "db"
	})
	a.stop()
	a = start()
	// The next borglet has them from its disk, and takes labels away.
	bare.Version, bare.LabelMark, bare.Labels = 2, 8, nil
	poll(bare, 8)
	bare.LabelMark, bare.Labels = 0, &borgrpc.TaskLabels{}
	poll(bare, 0)
	reads("no labels", func(p taskPaper) bool { return p.Version == 2 && len(p.Labels) == 0 && p.Limits.MemBytes == 128<<20 })
}

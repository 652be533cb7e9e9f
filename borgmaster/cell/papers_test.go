package cell

import (
	"fmt"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// TestPapersCountInTheLimit: a task names no more secrets and files than its memory limit
// holds at their largest, in the job's task and in an override alike; one with exactly that
// is taken, and so is one without a limit.
func TestPapersCountInTheLimit(t *testing.T) {
	if MaxSecretBytes != borgpb.MaxSecretBytes || MaxFileBytes != borgpb.MaxFileBytes {
		t.Fatalf("a secret has %d bytes and a file %d; on a machine %d and %d count", MaxSecretBytes, MaxFileBytes, borgpb.MaxSecretBytes, borgpb.MaxFileBytes)
	}
	full := &borgpb.TaskSpec{}
	for i := range maxPushedFiles {
		full.Files = append(full.Files, &borgpb.PushedFile{Name: fmt.Sprint("f", i)})
	}
	for i := range maxSecrets {
		full.Secrets = append(full.Secrets, fmt.Sprint("s", i))
	}
	const most = (maxPushedFiles+1)*MaxFileBytes + 2*maxSecrets*MaxSecretBytes
	for _, c := range []struct {
		what  string
		task  *borgpb.TaskSpec
		mem   int64
		taken bool
	}{
		{"all that a task may name", full, most, true},
		{"the same, and a byte less", full, most - 1, false},
		{"the same, and 1 MiB", full, 1 << 20, false},
		{"the same, and no limit", full, 0, true},
		{"one file, and the old one beside it", &borgpb.TaskSpec{Files: full.Files[:1]}, 2 * MaxFileBytes, true},
		{"one file, and a byte less", &borgpb.TaskSpec{Files: full.Files[:1]}, 2*MaxFileBytes - 1, false},
		{"one secret, and the old one beside it", &borgpb.TaskSpec{Secrets: full.Secrets[:1]}, 2 * MaxSecretBytes, true},
		{"one secret, and a byte less", &borgpb.TaskSpec{Secrets: full.Secrets[:1]}, 2*MaxSecretBytes - 1, false},
		{"nothing", &borgpb.TaskSpec{}, 1, true},
	} {
		c.task.Resources = &borgpb.Resources{CpuMilli: 1, MemBytes: c.mem}
		r := checkTask(c.task, "spec.task")
		if (r == nil) != c.taken || r != nil && (r.Kind != borgpb.RefusalKind_REFUSAL_KIND_INVALID || !strings.Contains(r.Message, "ask for more memory")) {
			t.Errorf("%s: %v, want that it is taken: %v", c.what, r, c.taken)
		}
	}
}

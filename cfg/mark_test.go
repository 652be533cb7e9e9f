package cfg

import (
	"os"
	"path/filepath"
	"testing"
)

// TestByteOrderMark holds that a mark at the head of a file is no part of its text,
// whatever kind of file it is.
func TestByteOrderMark(t *testing.T) {
	for name, text := range map[string]string{
		"job.borg": `job(name = "web", task = task(args = ["/bin/web"], resources = resources(cpu = 1, mem = "1GiB")))`,
		"job.yaml": `job: {name: web, task: {args: [/bin/web], resources: {cpu: 1, mem: 1GiB}}}`,
		"job.json": `{"job": {"name": "web", "task": {"args": ["/bin/web"], "resources": {"cpu": 1, "mem": "1GiB"}}}}`,
	} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte("\ufeff"+text), 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := Evaluate(path, Options{User: "alice"})
		if err != nil || len(f.Objects) != 1 || f.Objects[0].Name != "web" {
			t.Errorf("%s with a byte order mark: %v", name, err)
		}
	}
}

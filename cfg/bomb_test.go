package cfg

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// steps are values each of which names the one before several times.
func steps(format, first string) string {
	var text strings.Builder
	text.WriteString("jobs:\n" + first)
	for i := range 30 {
		fmt.Fprintf(&text, format, i+1, i)
	}
	return text.String()
}

// TestFileBombs: a file of at most a megabyte that stands for much more is refused, and
// takes no more memory than an evaluation may.
func TestFileBombs(t *testing.T) {
	task := "task: {args: [x], resources: {cpu: 1, mem: 1G}}"
	var names, shared strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&names, "a%d: b, ", i)
	}
	for i := range 1000 {
		fmt.Fprintf(&shared, "override(index = %d, task = t), ", i)
	}
	for name, c := range map[string]struct{ ext, text, want string }{
		"aliases of a long text":   {".yaml", "jobs:\n- {name: a, annotations: {x: &x " + strings.Repeat("x", 500_000) + "}, task: {args: [" + strings.Repeat("*x, ", 100_000) + "]}}", "more than 1048576 bytes of text"},
		"aliases of aliases":       {".yaml", "jobs:\n- &a [b, b, b, b]\n" + strings.Repeat("- &a [*a, *a, *a, *a, *a, *a, *a, *a]\n", 30), "nested more than 64 deep"},
		"merges of merges":         {".yaml", "jobs:\n- &a {b: c}\n" + strings.Repeat("- &a {<<: [*a, *a, *a, *a, *a, *a, *a, *a]}\n", 30), "nested more than 64 deep"},
		"aliases in steps":         {".yaml", steps("- &a%d [*a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d]\n", "- &a0 [b]\n"), "more than 200000 values"},
		"merges in steps":          {".yaml", steps("- &a%d {x: [*a%[2]d, *a%[2]d, *a%[2]d, *a%[2]d], <<: [*a%[2]d, *a%[2]d]}\n", "- &a0 {b: c}\n"), "more than 200000 values"},
		"an alias of itself":       {".yaml", "jobs: &a [*a]", "nested more than 64 deep"},
		"nested lists":             {".yaml", "jobs: " + strings.Repeat("[", 100_000), "not YAML"},
		"nested lists of JSON":     {".json", `{"jobs":` + strings.Repeat("[", 500_000), "nested more than 64 deep"},
		"many names":               {".yaml", "jobs:\n- {" + names.String() + task + "}", "more than 10000 names"},
		"many names of JSON":       {".json", `{"jobs":[{` + strings.ReplaceAll(strings.ReplaceAll(names.String(), ": b", `":0`), "a", `"a`) + `"x":0}]}`, "more than 10000 names"},
		"many values of JSON":      {".json", `{"jobs":[{"name":"a","x":[0` + strings.Repeat(",0", 190_000) + `]}]}`, "no field"},
		"a task in many overrides": {".borg", "t = task(args = ['x'] * 100000)\njob(name = 'a', tasks = 1000, task = t, overrides = [" + shared.String() + "])", "more than 200000 values"},
		"a repeated text":          {".borg", "job(name = 'x' * 100000000)", "1048576"},
		"a repeated list":          {".borg", "x = [1] * 100000000", "1048576"},
		"recursion":                {".borg", "def f(x):\n    return f(x + 1)\nf(0)", "recursively"},
		"numbers":                  {".borg", "def f():\n    x = 3\n    for i in range(60):\n        x = x * x\nf()", "more than 1048576 binary digits"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "job"+c.ext)
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			_, err := Evaluate(path, Options{User: "alice"})
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %.300v, want %q", err, c.want)
			}
			if took := after.HeapSys - min(before.HeapSys, after.HeapSys); took > 2*maxHeapGrowth {
				t.Errorf("the heap grew by %d bytes", took)
			}
		})
	}
}

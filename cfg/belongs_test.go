package cfg

import (
	"strings"
	"testing"
)

// TestMisplacedField: a field that is put beside its constructor is told where it belongs.
func TestMisplacedField(t *testing.T) {
	for _, c := range []struct{ name, what, want string }{
		{"max_runtime", "job()", "task"}, {"health", "job()", "task"}, {"args", "job()", "task"}, {"cpu", "job()", "resources"},
		{"mem", "task()", "resources"}, {"priority", "task()", "job"}, {"name", "task()", "job"}, {"cpu", "alloc_set()", "resources"},
		{"tsks", "job()", ""}, {"args", "update()", ""},
	} {
		if got := belongsIn(c.name, c.what); got != c.want {
			t.Errorf("%s in %s belongs in %q, want %q", c.name, c.what, got, c.want)
		}
	}
	s := &sources{}
	for _, c := range []struct{ name, want string }{
		{"max_runtime", "it belongs in task(...); in YAML and JSON below task"}, {"replicas", `did you mean "tasks"?`},
	} {
		if f := s.unknownField(Position{}, c.name, "job()", []string{"tasks", "max_running"}); !strings.Contains(f.Hint, c.want) {
			t.Errorf("%s in job(): %q, want %q", c.name, f.Hint, c.want)
		}
	}
}

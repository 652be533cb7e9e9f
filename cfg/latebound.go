package cfg

import (
	"fmt"
	"regexp"
	"strings"
)

// LateBound are the names that a borglet replaces in args, env and cwd when it
// starts a task, besides {{port.NAME}} for each of the task's ports and
// {{alloc.dir}} in an alloc.
func LateBound() []string {
	return []string{"cell", "machine.name", "job.user", "job.name", "task.index", "task.attempt", "task.dir", "task.files"}
}

// lateBound matches what may be a late-bound name. Anything else in double
// braces belongs to the program and is left alone.
var lateBound = regexp.MustCompile(`\{\{ *([a-zA-Z]+(?:\.[a-zA-Z0-9_-]+)?) *\}\}`)

// checkLateBound returns what is wrong with the late-bound names in a text, and
// what to write instead.
func checkLateBound(text string, ports []string, inAlloc bool) (what, hint string) {
	names := append(LateBound(), "alloc.dir")
	for _, p := range ports {
		names = append(names, "port."+p)
	}
	for _, m := range lateBound.FindAllStringSubmatch(text, -1) {
		name := m[1]
		space, port, _ := strings.Cut(name, ".")
		switch {
		case name == "alloc.dir" && !inAlloc:
			return "{{alloc.dir}} has no value in a job that runs in no alloc set", `give the job alloc_set = "NAME"`
		case contains(names, name), space == "volume" && port != "":
		case space == "port":
			hint := fmt.Sprintf("add it to the task: ports = [%q]", port)
			if near := nearest(port, ports); near != "" {
				hint = fmt.Sprintf("did you mean {{port.%s}}?", near)
			}
			return fmt.Sprintf("the task has no port %q", port), hint
		default:
			near := nearest(name, names)
			if near != "" {
				return fmt.Sprintf("there is no late-bound name {{%s}}", name), fmt.Sprintf("did you mean {{%s}}?", near)
			}
			if contains([]string{"task", "alloc", "job", "machine"}, space) && port != "" {
				return fmt.Sprintf("there is no late-bound name {{%s}}", name), "known are " + strings.Join(names, ", ")
			}
		}
	}
	return "", ""
}

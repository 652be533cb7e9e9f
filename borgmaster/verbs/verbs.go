package verbs

import "slices"

var (
	// Read are the verbs that everybody may use.
	Read = []string{"status", "tasks", "alloc", "logs", "why", "events", "audit", "diff", "whoami", "list", "watch"}
	// Own are the verbs about what belongs to a user.
	Own = []string{"up", "update", "resize", "label", "annotate", "cron", "down", "exec", "quarantine", "release", "secret", "file", "volume"}
	// Task are the verbs of a task about itself.
	Task = []string{"note"}
	// Admin are the verbs about what belongs to the cell.
	Admin = []string{"grant", "revoke", "user", "machine", "master", "member", "checkpoint", "authority", "package", "policy", "quota"}
)

// All returns every verb.
func All() []string { return slices.Concat(Own, Task, Admin, Read) }

// OfCell reports whether a verb is about something that no user owns: a machine, a user, or
// the word that follows it.
func OfCell(verb string) bool { return slices.Contains(Admin, verb) }

// IsSubcommand reports whether a word after a verb says what to do, and not to what.
func IsSubcommand(verb, word string) bool {
	switch verb {
	case "alloc":
		return word == "list"
	case "volume":
		return word == "list" || word == "delete"
	}
	return false
}

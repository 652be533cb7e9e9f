package cell

import (
	"fmt"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

const (
	// FormatPushed is the format in which tasks began to see small files of their
	// owner.
	FormatPushed = 8
	// FormatReady is the one in which they began to be asked whether they are ready.
	FormatReady = 8
	// FormatPackageCredentials is the one in which packages began to name a secret by
	// which they are brought.
	FormatPackageCredentials = 8
)

// checkPushed range-checks the files that a task sees.
func checkPushed(files []*borgpb.PushedFile, field string) *borgpb.Refusal {
	if len(files) > maxPushedFiles {
		return limit(field, "%d files; at most %d", len(files), maxPushedFiles)
	}
	for i, f := range files {
		if r := CheckFileName(f.Name); r != nil {
			return invalid(field, "file %d: %s", i, r.Message)
		}
		for _, other := range files[:i] {
			// Each is a file in one tree.
			if InPrefix(f.Name, other.Name) || InPrefix(other.Name, f.Name) {
				return invalid(field, "%q and %q cannot be files beside each other", clip(other.Name, 64), clip(f.Name, 64))
			}
		}
	}
	return nil
}

// maxMissingNamed bounds the secrets and files that a refusal names.
const maxMissingNamed = 8

// missing collects the secrets and files that a spec names and its user does not have.
type missing struct {
	user string
	// "secret" or "file" of the first one.
	kind string
	// What each is, and the command that makes it.
	what, next []string
	// More than those are missing.
	more bool
}

func (m *missing) add(kind, name, command string) {
	what := fmt.Sprintf("no %s %q", kind, name)
	switch {
	case slices.Contains(m.what, what):
		return
	case len(m.what) == maxMissingNamed:
		m.more = true
		return
	case m.kind == "":
		m.kind = kind
	}
	m.what, m.next = append(m.what, what), append(m.next, command+" "+name)
}

// refusal names all that is missing; nil: nothing is.
func (m *missing) refusal() *borgpb.Refusal {
	what, verb := strings.Join(m.what, ", "), "make them"
	switch {
	case len(m.what) == 0:
		return nil
	case m.more:
		what += ", and more"
	case len(m.what) == 1 && m.kind == "secret":
		verb = "set it"
	case len(m.what) == 1:
		verb = "write it"
	}
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND, "", "spec.task."+m.kind+"s",
		"user %s has %s; %s first: %s", m.user, what, verb, strings.Join(m.next, "; "))
}

// checkOwned wants the secrets and files of its owner, and the volumes of its alloc set,
// that a spec names.
func (c *Cell) checkOwned(user string, s *Spec) *borgpb.Refusal {
	m := &missing{user: user}
	c.missingSecrets(m, s)
	for _, n := range s.needs {
		for _, f := range n.Task.Files {
			if c.File(user, f.Name) == nil {
				m.add("file", f.Name, "borgcfg file put")
			}
		}
	}
	if r := m.refusal(); r != nil {
		return r
	}
	return c.checkAllocVolumes(s)
}

// secretsNamed are the secrets that a task names, for itself and for its packages; a name
// may come twice.
func secretsNamed(t *borgpb.TaskSpec) []string {
	names := t.Secrets[:len(t.Secrets):len(t.Secrets)]
	for _, p := range t.Packages {
		if p.Credentials != "" {
			names = append(names, p.Credentials)
		}
	}
	return names
}

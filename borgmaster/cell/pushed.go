package cell

import (
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

// checkOwned wants the secrets and files of its owner, and the volumes of its alloc set,
// that a spec names.
func (c *Cell) checkOwned(user string, s *Spec) *borgpb.Refusal {
	if r := c.checkSecrets(user, s); r != nil {
		return r
	}
	if r := c.checkAllocVolumes(s); r != nil {
		return r
	}
	for _, n := range s.needs {
		for _, f := range n.Task.Files {
			if c.File(user, f.Name) == nil {
				return refuse(borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND, "", "spec.task.files",
					"user %s has no file %q; write it first: borgcfg file put %s", user, f.Name, f.Name)
			}
		}
	}
	return nil
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

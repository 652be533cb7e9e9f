package borglet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"borg/identity"
	"borg/pages"
	"borg/proto/door"
)

// showsAll reports whether the reader of a page is shown what is whose: the cell's policy
// of visibility is open, or the reader is a program of the cell. A borglet does not know
// who is an admin.
func (a *Agent) showsAll(ctx context.Context) bool {
	role := door.Caller(ctx).Role
	return !a.private.Load() || role == identity.Master || role == identity.Borglet
}

// readerView names what the reader of a page may see of it.
func (a *Agent) readerView(ctx context.Context) string {
	if a.showsAll(ctx) {
		return ""
	}
	return "as " + door.Caller(ctx).String()
}

// ownRows leaves in a section, whose rows begin with "user/name", those of the reader, and
// says how many others there are.
func (a *Agent) ownRows(ctx context.Context, s pages.Section, what string) pages.Section {
	if a.showsAll(ctx) {
		return s
	}
	own := door.Caller(ctx).User()
	all := len(s.Rows)
	s.Rows = slices.DeleteFunc(s.Rows, func(row []pages.Value) bool {
		user, _, _ := strings.Cut(row[0].Text, "/")
		return own == "" || user != own
	})
	if others := all - len(s.Rows) + s.More; others > 0 {
		s.Words, s.More = fmt.Sprintf("And %d %s of others.", others, what), 0
	}
	return s
}

package audit

import (
	"math"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// share is whose records are bounded together. A caller who passes his share drops his
// own oldest records and nobody else's.
type share struct {
	// Records of admins are kept apart, so that no user displaces them.
	admin bool
	// The user, also of his tasks; of other callers their role. Roles begin with a
	// colon, which no name of a user has.
	who string
}

// holes are told until they are too old, whoever else is over his share.
var ofHoles = share{admin: true, who: ":hole"}

// shareOf returns the share that a record is charged to.
func shareOf(r *borgpb.AuditRecord) share {
	if r.Hole != nil {
		return ofHoles
	}
	switch r.Role {
	case borgpb.Role_ROLE_USER:
		return share{r.Admin, r.Who}
	case borgpb.Role_ROLE_TASK:
		user, _, _ := strings.Cut(r.Who, "/")
		return share{who: user}
	case borgpb.Role_ROLE_UNSPECIFIED:
		// An address costs nothing, so all callers without a name have one share.
		return share{who: ":nobody"}
	}
	return share{who: ":" + strings.ToLower(strings.TrimPrefix(r.Role.String(), "ROLE_"))}
}

// role is the inverse of shareOf, as far as a drop needs it.
func (s share) role() (role borgpb.Role, who string) {
	name, isRole := strings.CutPrefix(s.who, ":")
	if !isRole {
		return borgpb.Role_ROLE_USER, s.who
	}
	return borgpb.Role(borgpb.Role_value["ROLE_"+strings.ToUpper(name)]), name
}

// tally is the bytes of each share.
type tally map[share]int64

// sum returns the bytes of one pool: of the admins, or of everybody else.
func (t tally) sum(admins bool) (bytes int64) {
	for s, n := range t {
		if s.admin == admins {
			bytes += n
		}
	}
	return bytes
}

// excess returns what each share of a pool must drop so that the pool holds at most
// that many bytes. All shares above one level come down to it, and those below it
// drop nothing.
func (t tally) excess(admins bool, most int64) tally {
	var pool []share
	total := int64(0)
	for s, n := range t {
		if s.admin != admins {
			continue
		}
		if s == ofHoles {
			most -= n
			continue
		}
		pool = append(pool, s)
		total += n
	}
	if total <= most {
		return nil
	}
	held := make([]int64, len(pool))
	for i, s := range pool {
		held[i] = t[s]
	}
	level, over := Level(held, most), tally{}
	for _, s := range pool {
		if t[s] > level {
			over[s] = t[s] - level
		}
	}
	return over
}

// Level returns the most that each of several may hold so that all together hold at most
// that much, and none of them more than he does; what is below it stays as it is.
func Level(held []int64, most int64) int64 {
	held = slices.Clone(held)
	slices.Sort(held)
	level, rest := int64(0), max(most, 0)
	for i, n := range held {
		level = rest / int64(len(held)-i)
		if n > level {
			return level
		}
		rest -= n
	}
	return math.MaxInt64
}

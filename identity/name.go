package identity

import (
	"fmt"
	"strconv"
	"strings"
)

// Role is the kind of program or person that a name stands for.
type Role string

// The roles, and what their names look like.
const (
	// A person, or a program in a person's name: user/<name>.
	User Role = "user"
	// A replica of the borgmaster: master/<number>.
	Master Role = "master"
	// The scheduler process of a replica: scheduler/<number of the replica>.
	Scheduler Role = "scheduler"
	// The agent of a machine: borglet/<machine>.
	Borglet Role = "borglet"
	// A task: task/<user>/<job>/<index>.
	Task Role = "task"
	// Whoever holds a token and may become what it names, once: join/user/<name>
	// or join/borglet/<machine>.
	Join Role = "join"
)

const (
	scheme = "spiffe://"
	// A name of the longest parts; what is longer is refused unread.
	maxNameBytes = 256
)

// Name is who somebody is. Names may be compared. A Name with a Role and
// without an ID stands for everybody of that role.
type Name struct {
	// DNS label of the cell.
	Cell string
	Role Role
	// The part behind the role: "alice", "3", "m12", "alice/web/0".
	ID string
}

// ParseName reads a name as String writes it, and nothing else: no escapes, no
// other case, no empty or additional part.
func ParseName(uri string) (Name, error) {
	bad := func(why string) (Name, error) {
		return Name{}, fmt.Errorf("%q is not a name of a cell: %s", clip(uri), why)
	}
	if len(uri) > maxNameBytes {
		return bad(fmt.Sprintf("it has more than %d bytes", maxNameBytes))
	}
	rest, ok := strings.CutPrefix(uri, scheme)
	if !ok {
		return bad("it does not begin with " + scheme)
	}
	cell, rest, _ := strings.Cut(rest, "/")
	role, id, _ := strings.Cut(rest, "/")
	n := Name{Cell: cell, Role: Role(role), ID: id}
	if err := n.Check(); err != nil {
		return bad(err.Error())
	}
	return n, nil
}

// Check says what is wrong with a name.
func (n Name) Check() error {
	if !isLabel(n.Cell) {
		return fmt.Errorf("the cell %q is not a DNS label", clip(n.Cell))
	}
	parts := strings.Split(n.ID, "/")
	ok := false
	switch n.Role {
	case User, Borglet:
		ok = isLabel(n.ID)
	case Master, Scheduler:
		ok = n.ID != "0" && isNumber(n.ID)
	case Task:
		ok = len(parts) == 3 && isLabel(parts[0]) && isLabel(parts[1]) && isNumber(parts[2])
	case Join:
		ok = len(parts) == 2 && (parts[0] == string(User) || parts[0] == string(Borglet)) && isLabel(parts[1])
	default:
		return fmt.Errorf("there is no role %q", clip(string(n.Role)))
	}
	if !ok {
		return fmt.Errorf("%q names no %s", clip(n.ID), n.Role)
	}
	return nil
}

// String is the URI.
func (n Name) String() string {
	if n.ID == "" {
		return scheme + n.Cell + "/" + string(n.Role)
	}
	return scheme + n.Cell + "/" + string(n.Role) + "/" + n.ID
}

// Words is the name for people who know which cell is meant: "user alice".
func (n Name) Words() string {
	switch {
	case n.Role == "":
		return "nobody"
	case n.ID == "":
		return "any " + string(n.Role)
	}
	return string(n.Role) + " " + n.ID
}

// Is says whether n is want, or one of those that want stands for.
func (n Name) Is(want Name) bool {
	return n.Cell == want.Cell && n.Role == want.Role && (want.ID == "" || n.ID == want.ID)
}

// User is in whose name a user or a task acts; otherwise empty.
func (n Name) User() string {
	switch n.Role {
	case User:
		return n.ID
	case Task:
		user, _, _ := strings.Cut(n.ID, "/")
		return user
	}
	return ""
}

// Replica is the number of a master, or of a scheduler's master; otherwise 0.
func (n Name) Replica() uint64 {
	if n.Role != Master && n.Role != Scheduler {
		return 0
	}
	number, _ := strconv.ParseUint(n.ID, 10, 64)
	return number
}

// Becomes is who the holder of a join name may become; the zero Name for others.
func (n Name) Becomes() Name {
	role, id, ok := strings.Cut(n.ID, "/")
	if n.Role != Join || !ok {
		return Name{}
	}
	return Name{Cell: n.Cell, Role: Role(role), ID: id}
}

// ToJoin is the name of whoever may become n, a user or a borglet.
func (n Name) ToJoin() Name {
	return Name{Cell: n.Cell, Role: Join, ID: string(n.Role) + "/" + n.ID}
}

// isLabel tells a DNS label: a-z, 0-9 and dashes inside, at most 63.
func isLabel(s string) bool {
	if len(s) == 0 || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// isNumber tells a number that is written in its one way.
func isNumber(s string) bool {
	n, err := strconv.ParseUint(s, 10, 64)
	return err == nil && strconv.FormatUint(n, 10) == s
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}

package borglet

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"borg/proto/borgrpc"
)

// ID names one copy of a task: the index names the task, the attempt the copy.
type ID struct {
	JobUID  string
	Index   uint32
	Attempt uint64
}

const maxUIDBytes = 63

// isUID tells whether a job's uid looks like one: a DNS label. It becomes part of
// paths, so nothing else is let in. Each poll asks for each copy.
func isUID(s string) bool {
	if s == "" || len(s) > maxUIDBytes || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// IDOf reads a CopyID off the wire.
func IDOf(c *borgrpc.CopyID) (ID, error) {
	id := ID{JobUID: c.GetJobUid(), Index: c.GetIndex(), Attempt: c.GetAttempt()}
	if !isUID(id.JobUID) {
		return ID{}, fmt.Errorf("copy of job uid %q: a uid has lower-case letters, digits and dashes, at most 63", id.JobUID)
	}
	if id.Attempt == 0 {
		return ID{}, fmt.Errorf("copy %s: attempts count from 1", id)
	}
	return id, nil
}

// String is also the name of the copy's directory, container and cgroup.
func (id ID) String() string {
	return id.JobUID + "." + strconv.FormatUint(uint64(id.Index), 10) + "." + strconv.FormatUint(id.Attempt, 10)
}

// ParseID reads what String wrote.
func ParseID(s string) (ID, error) {
	parts := strings.Split(s, ".")
	if len(parts) != 3 {
		return ID{}, fmt.Errorf("copy %q: want <job uid>.<index>.<attempt>", s)
	}
	index, err := strconv.ParseUint(parts[1], 10, 32)
	if err != nil {
		return ID{}, fmt.Errorf("copy %q: index: %w", s, err)
	}
	attempt, err := strconv.ParseUint(parts[2], 10, 64)
	if err != nil {
		return ID{}, fmt.Errorf("copy %q: attempt: %w", s, err)
	}
	id, err := IDOf(&borgrpc.CopyID{JobUid: parts[0], Index: uint32(index), Attempt: attempt})
	if err == nil && id.String() != s {
		err = fmt.Errorf("copy %q: want %q", s, id)
	}
	return id, err
}

func (id ID) wire() *borgrpc.CopyID {
	return &borgrpc.CopyID{JobUid: id.JobUID, Index: id.Index, Attempt: id.Attempt}
}

// compareIDs is the fixed order of reports.
func compareIDs(a, b ID) int {
	return cmp.Or(
		strings.Compare(a.JobUID, b.JobUID),
		cmp.Compare(a.Index, b.Index),
		cmp.Compare(a.Attempt, b.Attempt),
	)
}

package cell

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// JobKey names a job or an alloc set: "<user>/<name>". At most one of them
// that is not dead has a given key.
type JobKey struct{ User, Name string }

func (k JobKey) String() string { return k.User + "/" + k.Name }

// Compare orders keys by user, then name.
func (k JobKey) Compare(o JobKey) int {
	if c := strings.Compare(k.User, o.User); c != 0 {
		return c
	}
	return strings.Compare(k.Name, o.Name)
}

// ParseJobKey reads "<user>/<name>".
func ParseJobKey(s string) (JobKey, error) {
	user, name, ok := strings.Cut(s, "/")
	if !ok || !validName(user) || !validName(name) {
		return JobKey{}, fmt.Errorf("%q is not a job: want <user>/<name>, both of a-z, 0-9 and -", clip(s, 128))
	}
	return JobKey{user, name}, nil
}

// TaskID names a task of a job or an alloc of an alloc set:
// "<user>/<name>/<index>".
type TaskID struct {
	Job   JobKey
	Index uint32
}

func (t TaskID) String() string {
	return t.Job.User + "/" + t.Job.Name + "/" + strconv.FormatUint(uint64(t.Index), 10)
}

// ParseTaskID reads "<user>/<name>/<index>".
func ParseTaskID(s string) (TaskID, error) {
	cut := strings.LastIndexByte(s, '/')
	if cut < 0 {
		return TaskID{}, fmt.Errorf("%q is not a task: want <user>/<name>/<index>", clip(s, 128))
	}
	key, err := ParseJobKey(s[:cut])
	if err != nil {
		return TaskID{}, fmt.Errorf("%q is not a task: want <user>/<name>/<index>", clip(s, 128))
	}
	n, rest, ok := parseDecimal(s[cut+1:])
	if !ok || rest != "" || n > 1<<32-1 {
		return TaskID{}, fmt.Errorf("%q is not a task: the index after the last / is not a number", clip(s, 128))
	}
	return TaskID{key, uint32(n)}, nil
}

// UID tells objects apart that bear one name after the other. It comes from
// the log and is never used again: the epoch of the cell, the index of the
// entry that made the object, and its place among those of the entry.
type UID struct {
	Epoch, Index uint64
	N            uint32
}

func (u UID) String() string {
	var buf [48]byte
	b := strconv.AppendUint(buf[:0], u.Epoch, 10)
	b = append(b, '-')
	b = strconv.AppendUint(b, u.Index, 10)
	b = append(b, '-')
	b = strconv.AppendUint(b, uint64(u.N), 10)
	return string(b)
}

// IsZero tells whether u names nothing.
func (u UID) IsZero() bool { return u == UID{} }

// Compare orders uids by age.
func (u UID) Compare(o UID) int {
	if c := cmp.Compare(u.Epoch, o.Epoch); c != 0 {
		return c
	}
	if c := cmp.Compare(u.Index, o.Index); c != 0 {
		return c
	}
	return cmp.Compare(u.N, o.N)
}

// ParseUID reads what String writes.
func ParseUID(s string) (UID, error) {
	u, ok := parseUID(s)
	if !ok {
		return UID{}, fmt.Errorf("%q is not a uid: want <epoch>-<index>-<n>", clip(s, 64))
	}
	return u, nil
}

// parseUID allocates nothing: it is called for each assignment and report.
func parseUID(s string) (u UID, ok bool) {
	var n uint64
	if u.Epoch, s, ok = parseDecimal(s); !ok || s == "" || s[0] != '-' {
		return UID{}, false
	}
	if u.Index, s, ok = parseDecimal(s[1:]); !ok || s == "" || s[0] != '-' {
		return UID{}, false
	}
	if n, s, ok = parseDecimal(s[1:]); !ok || s != "" || n > 1<<32-1 {
		return UID{}, false
	}
	u.N = uint32(n)
	return u, true
}

// parseDecimal reads the one way to write a number: digits, no leading zero.
func parseDecimal(s string) (n uint64, rest string, ok bool) {
	i := 0
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		d := uint64(s[i] - '0')
		if n > (1<<64-1-d)/10 {
			return 0, s, false
		}
		n = n*10 + d
		i++
	}
	if i == 0 || (s[0] == '0' && i > 1) {
		return 0, s, false
	}
	return n, s[i:], true
}

// CopyID names one copy of a task: the attempt is counted by the log.
type CopyID struct {
	Job     UID
	Index   uint32
	Attempt uint64
}

func (c CopyID) String() string {
	return fmt.Sprintf("%s.%d.%d", c.Job, c.Index, c.Attempt)
}

// Compare orders copies by job uid, index, attempt.
func (c CopyID) Compare(o CopyID) int {
	if r := c.Job.Compare(o.Job); r != 0 {
		return r
	}
	if r := cmp.Compare(c.Index, o.Index); r != 0 {
		return r
	}
	return cmp.Compare(c.Attempt, o.Attempt)
}

// validName tells whether s is a DNS label.
func validName(s string) bool {
	if len(s) == 0 || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		b := s[i]
		if (b < 'a' || b > 'z') && (b < '0' || b > '9') && b != '-' {
			return false
		}
	}
	return true
}

// clip bounds what is quoted in a message.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}

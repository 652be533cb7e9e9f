package cell

import (
	"encoding/binary"
	"iter"
	"strings"
)

// jobs are all jobs by their keys, and in the order of them. Those of a user are apart from
// those of others: who looks for one of his compares names alone, which differ early, and in
// a cell of many users moves few of them.
type jobs struct {
	byUser map[string]*userJobs
	// The same, in order.
	users order[nameKey, *userJobs]
	count int
}

// userJobs are the jobs of one user, one at least.
type userJobs struct {
	user string
	list order[nameKey, *Job]
	// How many of them are dead, and their tasks by state; derived.
	deadJobs int
	tasks    [stateDead + 1]int
}

// nameKey is the name of a user, or of a job among those of its user.
type nameKey string

func (n nameKey) Compare(o nameKey) int { return strings.Compare(string(n), string(o)) }

func (n nameKey) head() keyHead {
	var b [16]byte
	copy(b[:], n)
	return keyHead{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (u *userJobs) orderKey() nameKey { return nameKey(u.user) }

// orderKey is its place among those of its user.
func (j *Job) orderKey() nameKey { return nameKey(j.key.Name) }

// of is the job of a key; nil: there is none.
func (all *jobs) of(key JobKey) *Job {
	if u := all.byUser[key.User]; u != nil {
		return u.list.get(nameKey(key.Name))
	}
	return nil
}

// add puts in a job whose key is not there.
func (all *jobs) add(j *Job) {
	u := all.byUser[j.key.User]
	if u == nil {
		u = &userJobs{user: j.key.User}
		if all.byUser == nil {
			all.byUser = make(map[string]*userJobs)
		}
		all.byUser[u.user] = u
		all.users.add(u)
	}
	// His name is kept once.
	j.key.User = u.user
	u.list.add(j)
	all.count++
}

// remove takes out the job of a key, if it is there.
func (all *jobs) remove(key JobKey) {
	u := all.byUser[key.User]
	if u == nil {
		return
	}
	before := u.list.len()
	u.list.remove(nameKey(key.Name))
	all.count -= before - u.list.len()
	if u.list.len() == 0 {
		delete(all.byUser, u.user)
		all.users.remove(nameKey(u.user))
	}
}

func (all *jobs) len() int { return all.count }

// each yields all jobs. None may come or go meanwhile.
func (all *jobs) each() iter.Seq[*Job] {
	return func(yield func(*Job) bool) {
		for u := range all.users.each() {
			for j := range u.list.each() {
				if !yield(j) {
					return
				}
			}
		}
	}
}

// from yields the jobs from a key on.
func (all *jobs) from(key JobKey) iter.Seq[*Job] {
	return all.behind(key, (*order[nameKey, *Job]).from)
}

// after yields the jobs behind a key.
func (all *jobs) after(key JobKey) iter.Seq[*Job] {
	return all.behind(key, (*order[nameKey, *Job]).after)
}

// behind yields what first has of the user of a key, and then all of those behind him.
func (all *jobs) behind(key JobKey, first func(*order[nameKey, *Job], nameKey) iter.Seq[*Job]) iter.Seq[*Job] {
	return func(yield func(*Job) bool) {
		for u := range all.users.from(nameKey(key.User)) {
			some := u.list.each()
			if u.user == key.User {
				some = first(&u.list, nameKey(key.Name))
			}
			for j := range some {
				if !yield(j) {
					return
				}
			}
		}
	}
}

// wellFormed verifies what the fields promise, but for the order of the jobs, which Check
// looks at.
func (all *jobs) wellFormed() bool {
	n := 0
	for u := range all.users.each() {
		if u.list.len() == 0 || !u.list.wellFormed() || all.byUser[u.user] != u {
			return false
		}
		for j := range u.list.each() {
			if j.key.User != u.user {
				return false
			}
		}
		n += u.list.len()
	}
	return n == all.count && len(all.byUser) == all.users.len() && all.users.wellFormed()
}

package cell

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/mutant"
	"borg/proto/borgpb"
)

// FormatVisibility is the format in which the policy of visibility began.
const FormatVisibility = 12

// ShareLabel is the label by which a job or alloc set is shared: its value names a group.
const ShareLabel = "share"

// visibility rules what users may read of each other's work. The cell keeps it; those who
// answer readers ask it by a Sight.
type visibility struct {
	mark
	// How often it was set; zero: never, and everything is open.
	version uint64
	// Must not be changed.
	proto *borgpb.Visibility
	// Names of the groups of each user, sorted; derived.
	groups map[string][]string
}

// Visibility is the policy that holds, and how often one was set. It must not be changed.
func (c *Cell) Visibility() (*borgpb.Visibility, uint64) {
	if c.visibility.proto == nil {
		return &borgpb.Visibility{}, c.visibility.version
	}
	return c.visibility.proto, c.visibility.version
}

// Private reports whether users read only what is their own and what is shared with them.
func (c *Cell) Private() bool { return c.visibility.proto.GetPrivate() }

// Sight is what somebody may read. The zero Sight sees nobody's work.
type Sight struct {
	all    bool
	user   string
	groups []string
}

// SightOfAll sees everything.
func SightOfAll() Sight { return Sight{all: true} }

// SightOf returns what a user may read. An admin reads everything; his tasks, which have no
// capabilities, do not.
func (c *Cell) SightOf(user string, admin bool) Sight {
	if !c.Private() || admin {
		return SightOfAll()
	}
	return Sight{user: user, groups: c.visibility.groups[user]}
}

// All reports whether it sees everything.
func (s *Sight) All() bool { return s.all }

// SeesUser reports whether it sees all that belongs to a user.
func (s *Sight) SeesUser(user string) bool { return s.all || user != "" && user == s.user }

// Sees reports whether it sees a job or alloc set of a user with these labels.
func (s *Sight) Sees(user string, labels map[string]string) bool {
	if s.SeesUser(user) {
		return true
	}
	if len(s.groups) == 0 {
		return false
	}
	if mutant.Planted(mutant.SharedWithAll) {
		return labels[ShareLabel] != ""
	}
	_, in := slices.BinarySearch(s.groups, labels[ShareLabel])
	return in
}

// SeesJob reports whether it sees a job.
func (s *Sight) SeesJob(j *Job) bool { return j != nil && s.Sees(j.key.User, j.labels) }

// SeesAllocSet reports whether it sees an alloc set.
func (s *Sight) SeesAllocSet(set *AllocSet) bool {
	return set != nil && s.Sees(set.key.User, set.labels)
}

// SeesKey reports whether it sees a job or alloc set of that name. One that the cell does
// not remember is seen by its owner.
func (s *Sight) SeesKey(c *Cell, key JobKey) bool {
	return s.SeesUser(key.User) || s.SeesJob(c.Job(key)) || s.SeesAllocSet(c.AllocSet(key))
}

// Equal reports whether two sights see the same.
func (s *Sight) Equal(o *Sight) bool {
	return s.all == o.all && s.user == o.user && slices.Equal(s.groups, o.groups)
}

// hides reports whether who asks for the op at hand may not see a job or alloc set of a
// user with these labels: to him it is refused as if it did not exist.
func (c *Cell) hides(user string, labels map[string]string) bool {
	who := c.now.asker
	if !c.Private() || who.GetUser() == "" {
		return false
	}
	s := c.SightOf(who.User, who.Task == "" && c.Has(who.User, Admin))
	return !s.Sees(user, labels)
}

func (c *Cell) checkSetVisibility(o *borgpb.SetVisibility) (commit, *borgpb.Refusal) {
	v := &c.visibility
	if o.ExpectVersion != 0 && o.ExpectVersion != v.version {
		return nil, conflict("visibility policy", o.ExpectVersion, v.version)
	}
	if r := CheckVisibility(o.Policy); r != nil {
		return nil, about("visibility policy", r)
	}
	if o.Policy.GetPrivate() && c.users.admins == 0 {
		return nil, badState("visibility policy", "no user has the capability admin, so nobody would read everything; grant it first")
	}
	return func(res *borgpb.Result) {
		v.version++
		v.set(proto.CloneOf(o.Policy))
		c.dirty(v)
		words := fmt.Sprintf("version %d: %s, %d groups", v.version, visibilityWord(o.Policy.GetPrivate()), len(o.Policy.GetGroups()))
		if c.now.reason != "" {
			words += ": " + c.now.reason
		}
		c.emit(Event{Kind: borgpb.EventKind_EVENT_KIND_VISIBILITY, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_CELL, Version: v.version, Reason: clip(words, maxReasonBytes)})
		res.Version = v.version
	}, nil
}

func visibilityWord(private bool) string {
	if private {
		return "private"
	}
	return "open"
}

// CheckVisibility tells what is wrong with a policy.
func CheckVisibility(policy *borgpb.Visibility) *borgpb.Refusal {
	if n := len(policy.GetGroups()); n > maxShareGroups {
		return limit("groups", "%d groups; at most %d", n, maxShareGroups)
	}
	names, members := make(map[string]bool), 0
	for _, g := range policy.GetGroups() {
		switch {
		case !validName(g.GetName()):
			return invalid("groups", "%q is not a name: want 1 to 63 of a-z, 0-9 and -, not - at an end", clip(g.GetName(), 64))
		case names[g.Name]:
			return invalid("groups", "group %s is named twice", g.Name)
		case len(g.Users) == 0:
			return invalid("groups", "group %s has no members; leave it out", g.Name)
		}
		names[g.Name] = true
		in := make(map[string]bool, len(g.Users))
		for _, u := range g.Users {
			if r := checkUserName(u); r != nil {
				r.Field = "groups"
				return r
			}
			if in[u] {
				return invalid("groups", "user %s is in group %s twice", u, g.Name)
			}
			in[u] = true
		}
		if members += len(g.Users); members > maxShareMembers {
			return limit("groups", "the groups have more than %d members together", maxShareMembers)
		}
	}
	return nil
}

// set takes over a policy, whose groups and members it puts in order.
func (v *visibility) set(policy *borgpb.Visibility) {
	v.proto, v.groups = policy, make(map[string][]string)
	slices.SortFunc(policy.GetGroups(), func(a, b *borgpb.ShareGroup) int { return cmp.Compare(a.Name, b.Name) })
	for _, g := range policy.GetGroups() {
		slices.Sort(g.Users)
		for _, u := range g.Users {
			v.groups[u] = append(v.groups[u], g.Name)
		}
	}
}

// check holds the invariants of the policy.
func (v *visibility) check(format uint32) error {
	members, sum := 0, 0
	for _, g := range v.proto.GetGroups() {
		members += len(g.Users)
	}
	for _, groups := range v.groups {
		sum += len(groups)
	}
	sorted := slices.IsSortedFunc(v.proto.GetGroups(), func(a, b *borgpb.ShareGroup) int { return strings.Compare(a.Name, b.Name) })
	if r := CheckVisibility(v.proto); r != nil || !sorted || members != sum || v.version != 0 && format < FormatVisibility || v.version == 0 && v.proto != nil {
		return fmt.Errorf("the visibility policy of version %d has %d members, %d by user, or is odd: %s", v.version, members, sum, r.GetMessage())
	}
	return nil
}

func (v *visibility) appendKey(b []byte) []byte { return append(b, kindVisibility) }
func (v *visibility) exists() bool              { return v.version != 0 }

func (v *visibility) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.uint(v.version)
	e.bool(v.proto.GetPrivate())
	e.uint(uint64(len(v.proto.GetGroups())))
	for _, g := range v.proto.GetGroups() {
		e.str(g.Name)
		e.uint(uint64(len(g.Users)))
		for _, u := range g.Users {
			e.str(u)
		}
	}
	return e.b
}

func (l *loader) visibility(d *decoder) error {
	version, policy := d.uint(), &borgpb.Visibility{Private: d.bool()}
	for range d.count() {
		g := &borgpb.ShareGroup{Name: d.str()}
		for range d.count() {
			g.Users = append(g.Users, d.str())
		}
		policy.Groups = append(policy.Groups, g)
	}
	if err := d.done(); err != nil {
		return err
	}
	if l.c.format < FormatVisibility || version == 0 {
		return errOdd
	}
	if r := CheckVisibility(policy); r != nil {
		return errors.New(r.Message)
	}
	l.c.visibility.version = version
	l.c.visibility.set(policy)
	return nil
}

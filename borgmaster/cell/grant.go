package cell

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// FormatGrants is the format in which users, capabilities and tokens began.
const FormatGrants = 2

// Capability is what a user may do beyond what everybody may.
type Capability string

// The capabilities (paper §2.5). What a spec needs one for is asked since
// FormatPermissions; before, all but Admin were kept without effect.
const (
	// Everything: machines, members, grants, what belongs to others.
	Admin Capability = "admin"
	// Use features of the kernel that tasks are denied.
	KernelFeatures Capability = "kernel-features"
	// Run without the estimation of resources.
	NoEstimation Capability = "no-estimation"
	// Run with less between a task and its machine: its directories, its user ids.
	RelaxIsolation Capability = "relax-isolation"
)

// Capabilities are all that there are, sorted.
var Capabilities = []Capability{Admin, KernelFeatures, NoEstimation, RelaxIsolation}

// User is somebody of whom the cell was told something. Of others it knows
// nothing: whoever has a certificate may run jobs of his own.
type User struct {
	mark
	name string
	// Sorted.
	capabilities []Capability
	// Certificates issued up to then are not believed; zero: all are.
	revokedWallNs int64
	// An admin who has changed something in the cell since the grant, with a certificate
	// that still counts: the name is somebody's.
	proven bool
	gone   bool
}

// Name is the user's.
func (u *User) Name() string { return u.name }

// Capabilities are sorted. Must not be changed.
func (u *User) Capabilities() []Capability { return u.capabilities }

// RevokedWallNs is up to when certificates that were issued are not believed.
func (u *User) RevokedWallNs() int64 { return u.revokedWallNs }

func (u *User) has(c Capability) bool {
	_, ok := slices.BinarySearch(u.capabilities, c)
	return ok
}

type users struct {
	byName map[string]*User
	// Sorted by name; only those of whom there is something to say.
	list []*User
	// How many have the capability Admin; derived.
	admins int
	// Counts the grants and revocations of it since the cell was loaded.
	adminChanges uint64
}

// User returns what is known of a user; nil: nothing.
func (c *Cell) User(name string) *User { return c.users.byName[name] }

// Users yields all of whom something is known, by name.
func (c *Cell) Users() iter.Seq[*User] { return slices.Values(c.users.list) }

// Has says whether a user has a capability.
func (c *Cell) Has(user string, capability Capability) bool {
	u := c.users.byName[user]
	return u != nil && u.has(capability)
}

// NumAdmins counts the users with the capability Admin. While there are none the
// cell leaves it to its masters who may do what.
func (c *Cell) NumAdmins() int { return c.users.admins }

// AdminChanges is another number whenever other users are admins than before. It is not the
// same at all replicas.
func (c *Cell) AdminChanges() uint64 { return c.users.adminChanges }

// checkPermission refuses what a user may not do: he has a say over what is his, which
// the key of an object says; an admin over everything. The cell's own ops name no user.
func (c *Cell) checkPermission(op *borgpb.Op) *borgpb.Refusal {
	if op.Principal.GetTask() != "" {
		return c.checkTaskPermission(op)
	}
	who := op.Principal.GetUser()
	if c.format < FormatGrants || who == "" || c.users.admins == 0 || c.Has(who, Admin) {
		return nil
	}
	var of named
	switch o := op.Op.(type) {
	case *borgpb.Op_SetSecret:
		of = o.SetSecret
	case *borgpb.Op_DeleteSecret:
		of = o.DeleteSecret
	case *borgpb.Op_WriteFile:
		of = o.WriteFile
	case *borgpb.Op_DeleteFile:
		of = o.DeleteFile
	case *borgpb.Op_SubmitJob:
		of = o.SubmitJob
	case *borgpb.Op_KillJob:
		of = o.KillJob
	case *borgpb.Op_UpdateJob:
		of = o.UpdateJob
	case *borgpb.Op_ResizeJob:
		of = o.ResizeJob
	case *borgpb.Op_ControlUpdate:
		of = o.ControlUpdate
	case *borgpb.Op_FireCron:
		of = o.FireCron
	case *borgpb.Op_SuspendCron:
		of = o.SuspendCron
	case *borgpb.Op_QuarantineTask:
		of = o.QuarantineTask
	case *borgpb.Op_ReleaseTask:
		of = o.ReleaseTask
	case *borgpb.Op_DeleteVolume:
		of = o.DeleteVolume
	case *borgpb.Op_SubmitAllocSet:
		of = o.SubmitAllocSet
	case *borgpb.Op_KillAllocSet:
		of = o.KillAllocSet
	case *borgpb.Op_UpdateAllocSet:
		of = o.UpdateAllocSet
	case *borgpb.Op_ResizeAllocSet:
		of = o.ResizeAllocSet
	case *borgpb.Op_SetLabels:
		// A machine is nobody's: its op names no user.
		if o.SetLabels.Kind == borgpb.Labelled_LABELLED_MACHINE {
			return c.needsAdmin(who)
		}
		of = o.SetLabels
	default:
		return c.needsAdmin(who)
	}
	if of.GetUser() == who {
		return nil
	}
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, keyWords(of), "",
		"it belongs to user %s; user %s needs the capability admin for it, which can be granted by %s", clip(of.GetUser(), 64), who, c.grantWords(who, Admin))
}

func (c *Cell) needsAdmin(who string) *borgpb.Refusal {
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "",
		"it needs the capability admin, which user %s does not have; it can be granted by %s", who, c.grantWords(who, Admin))
}

// grantWords says who can grant a capability to a user, and what they type.
func (c *Cell) grantWords(user string, what Capability) string {
	return c.adminWords() + GrantCommand(user, what)
}

// GrantCommand is what an admin types, as the end of a sentence that names the admins.
func GrantCommand(user string, what Capability) string {
	return fmt.Sprintf(": borgcfg grant %s %s", user, what)
}

// adminWords names some of those who can grant.
func (c *Cell) adminWords() string { return c.adminsBeside("") }

// adminsBeside names some of the admins except one.
func (c *Cell) adminsBeside(except string) string {
	const some = 5
	var names []string
	for _, u := range c.users.list {
		if u.has(Admin) && u.name != except {
			if len(names) == some {
				return strings.Join(names, ", ") + ", ..."
			}
			names = append(names, u.name)
		}
	}
	return strings.Join(names, ", ")
}

func checkUserName(name string) *borgpb.Refusal {
	if !validName(name) {
		return invalid("user", "%q is not a name: want 1 to 63 of a-z, 0-9 and -, not - at an end", clip(name, 64))
	}
	return nil
}

func checkCapability(name string) *borgpb.Refusal {
	if !slices.Contains(Capabilities, Capability(name)) {
		return invalid("capability", "there is no capability %q", clip(name, 64))
	}
	return nil
}

func (c *Cell) checkGrant(o *borgpb.Grant) (commit, *borgpb.Refusal) {
	if r := checkUserName(o.User); r != nil {
		return nil, r
	}
	if r := checkCapability(o.Capability); r != nil {
		return nil, about(o.User, r)
	}
	if c.Has(o.User, Capability(o.Capability)) {
		return nil, refuse(borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS, o.User, "capability", "it has the capability %s", o.Capability)
	}
	if c.users.byName[o.User] == nil && c.usersAreFull() {
		return nil, limit("", "the cell knows %d users", len(c.users.list))
	}
	return func(*borgpb.Result) {
		u := c.user(o.User)
		at, _ := slices.BinarySearch(u.capabilities, Capability(o.Capability))
		u.capabilities = slices.Insert(slices.Clone(u.capabilities), at, Capability(o.Capability))
		if o.Capability == string(Admin) {
			c.users.admins++
			c.users.adminChanges++
		}
		c.dirty(u)
		c.emit(userEvent(borgpb.EventKind_EVENT_KIND_GRANT, o.User, o.Capability, c.now.reason))
	}, nil
}

func (c *Cell) checkRevoke(o *borgpb.Revoke) (commit, *borgpb.Refusal) {
	if r := checkUserName(o.User); r != nil {
		return nil, r
	}
	u := c.users.byName[o.User]
	switch {
	case o.Capability == "" && o.CertificatesWallNs == 0:
		return nil, about(o.User, invalid("capability", "neither a capability nor certificates are named"))
	case o.Capability != "" && checkCapability(o.Capability) != nil:
		return nil, about(o.User, checkCapability(o.Capability))
	case o.Capability != "" && !c.Has(o.User, Capability(o.Capability)):
		return nil, notFound(o.User, "it does not have the capability %s", o.Capability)
	case o.Capability == string(Admin) && c.users.admins == 1:
		return nil, refuse(borgpb.RefusalKind_REFUSAL_KIND_STATE, o.User, "capability", "it is the last user with the capability admin; grant that to another one first")
	case o.Capability == string(Admin) && c.now.asker.GetUser() == o.User && !c.provenBeside(o.User):
		return nil, refuse(borgpb.RefusalKind_REFUSAL_KIND_STATE, o.User, "capability",
			"no other admin (%s) has changed anything in this cell since the grant, so nobody may hold such a name and the cell would have no admin; let such an admin type: borgcfg revoke %s admin", c.adminsBeside(o.User), o.User)
	case o.CertificatesWallNs < 0 || o.CertificatesWallNs > c.clock.wallNs+second:
		return nil, about(o.User, invalid("certificates_wall_ns", "%d is not a time in the past", o.CertificatesWallNs))
	case o.CertificatesWallNs != 0 && u != nil && o.CertificatesWallNs <= u.revokedWallNs:
		return nil, refuse(borgpb.RefusalKind_REFUSAL_KIND_STALE, o.User, "certificates_wall_ns", "its certificates up to a later time are revoked already")
	case u == nil && c.usersAreFull():
		return nil, limit("", "the cell knows %d users", len(c.users.list))
	}
	return func(*borgpb.Result) {
		u := c.user(o.User)
		if at, ok := slices.BinarySearch(u.capabilities, Capability(o.Capability)); ok {
			u.capabilities = slices.Delete(slices.Clone(u.capabilities), at, at+1)
			if o.Capability == string(Admin) {
				c.users.admins--
				c.users.adminChanges++
				u.proven = false
			}
		}
		what := o.Capability
		if o.CertificatesWallNs != 0 {
			u.revokedWallNs, u.proven = o.CertificatesWallNs, false
			what = strings.TrimPrefix(what+" and all certificates so far", " and ")
		}
		if len(u.capabilities) == 0 && u.revokedWallNs == 0 {
			c.users.remove(u)
		}
		c.dirty(u)
		c.emit(userEvent(borgpb.EventKind_EVENT_KIND_REVOKE, o.User, what, c.now.reason))
	}, nil
}

// provenBeside reports whether an admin other than that user is known to exist.
func (c *Cell) provenBeside(user string) bool {
	return slices.ContainsFunc(c.users.list, func(u *User) bool { return u.proven && u.name != user })
}

// proveAdmin notes that the admin who asked for the op at hand exists.
func (c *Cell) proveAdmin() {
	if !c.askedByAdmin() {
		return
	}
	if u := c.users.byName[c.now.asker.User]; !u.proven {
		u.proven = true
		c.dirty(u)
	}
}

// isForgettable reports whether nothing of a user counts any more: it has no capability, and all
// certificates that were revoked have expired, by far.
func (c *Cell) isForgettable(u *User) bool {
	return len(u.capabilities) == 0 && u.revokedWallNs < c.clock.wallNs-revocationNs
}

// usersAreFull reports whether there is no room for another user.
func (c *Cell) usersAreFull() bool {
	return len(c.users.list) >= maxUsers && !slices.ContainsFunc(c.users.list, c.isForgettable)
}

// forgetUsers makes room for another user, if the cell knows as many as it may. Only then: the
// wall clock may have stepped forward, so a revocation is kept while there is room for it.
func (c *Cell) forgetUsers() {
	if len(c.users.list) < maxUsers {
		return
	}
	c.users.list = slices.DeleteFunc(c.users.list, func(u *User) bool {
		if !c.isForgettable(u) {
			return false
		}
		delete(c.users.byName, u.name)
		u.gone = true
		c.dirty(u)
		return true
	})
}

// user returns the user of that name, who is made when there is none.
func (c *Cell) user(name string) *User {
	u := c.users.byName[name]
	if u == nil {
		c.forgetUsers()
		u = &User{name: name}
		c.users.add(u)
	}
	return u
}

func (s *users) add(u *User) {
	s.byName[u.name] = u
	at, _ := slices.BinarySearchFunc(s.list, u.name, compareUser)
	s.list = slices.Insert(s.list, at, u)
}

func (s *users) remove(u *User) {
	delete(s.byName, u.name)
	at, _ := slices.BinarySearchFunc(s.list, u.name, compareUser)
	s.list = slices.Delete(s.list, at, at+1)
	u.gone = true
}

func compareUser(u *User, name string) int { return strings.Compare(u.name, name) }

// check holds the invariants of users and tokens.
func (s *users) check() error {
	admins := 0
	for i, u := range s.list {
		if s.byName[u.name] != u || (i > 0 && s.list[i-1].name >= u.name) || !slices.IsSorted(u.capabilities) || (len(u.capabilities) == 0 && u.revokedWallNs == 0) {
			return fmt.Errorf("user %s is out of order, or nothing is known of it", u.name)
		}
		if u.proven && !u.has(Admin) {
			return fmt.Errorf("user %s was seen as an admin and is none", u.name)
		}
		if u.has(Admin) {
			admins++
		}
	}
	if admins != s.admins || len(s.byName) != len(s.list) || len(s.list) > maxUsers {
		return fmt.Errorf("%d users of whom %d are admins are counted as %d and %d", len(s.list), admins, len(s.byName), s.admins)
	}
	return nil
}

func userEvent(kind borgpb.EventKind, user, what, reason string) Event {
	if reason != "" {
		what += ": " + reason
	}
	return Event{Kind: kind, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_USER, Name: user, Reason: what}
}

func (u *User) appendKey(b []byte) []byte { return append(append(b, kindUser), u.name...) }
func (u *User) exists() bool              { return !u.gone }

func (u *User) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.uint(uint64(len(u.capabilities)))
	for _, c := range u.capabilities {
		e.str(string(c))
	}
	e.int(u.revokedWallNs)
	if u.proven {
		e.byte(tagProven)
	}
	return e.b
}

func (l *loader) user(name string, d *decoder) error {
	u := &User{name: name}
	for range d.count() {
		c := Capability(d.str())
		if !slices.Contains(Capabilities, c) || (len(u.capabilities) > 0 && u.capabilities[len(u.capabilities)-1] >= c) {
			return errOdd
		}
		u.capabilities = append(u.capabilities, c)
	}
	u.revokedWallNs = d.int()
	u.proven = d.tagged(tagProven)
	if err := d.done(); err != nil {
		return err
	}
	if l.c.format < FormatGrants || !validName(name) || (len(u.capabilities) == 0 && u.revokedWallNs == 0) || u.revokedWallNs < 0 || u.revokedWallNs > maxTimeNs || (u.proven && !u.has(Admin)) {
		return errOdd
	}
	if u.has(Admin) {
		l.c.users.admins++
	}
	l.c.users.add(u)
	return nil
}

package cell

import (
	"borg/mutant"
	"borg/proto/borgpb"
)

// FormatPermissions is the format from which on a spec may ask for some things
// only with a capability.
const FormatPermissions = 7

// power is something that a spec may ask for with a capability.
type power struct {
	field      string
	capability Capability
	asked      func(t *borgpb.TaskSpec) bool
}

var powers = []power{
	{"no_estimation", NoEstimation, (*borgpb.TaskSpec).GetNoEstimation},
	{"rootfs", RelaxIsolation, func(t *borgpb.TaskSpec) bool { return t.Rootfs != "" }},
	{"mounts", RelaxIsolation, func(t *borgpb.TaskSpec) bool { return len(t.Mounts) > 0 }},
	{"relax.system_calls", KernelFeatures, func(t *borgpb.TaskSpec) bool { return t.GetRelax().GetSystemCalls() }},
	{"relax.user_ids", RelaxIsolation, func(t *borgpb.TaskSpec) bool { return t.GetRelax().GetUserIds() }},
}

// checkPowers refuses what a spec asks for and who asks may not have. was is the spec
// that it takes the place of, or nil: what a job has already was decided when it began
// to, but other directories of the machine are asked for anew.
func (c *Cell) checkPowers(s, was *Spec) *borgpb.Refusal {
	if c.format < FormatPermissions || mutant.Planted(mutant.PowerNotAsked) {
		return nil
	}
	for _, p := range powers {
		if c.hasPower(p.capability) {
			continue
		}
		for _, need := range s.needs {
			if p.asked(need.Task) && !was.asks(p, need.Task) {
				return c.lacks(p)
			}
		}
	}
	return nil
}

// asks tells whether some task of the spec has a power already: of directories of the
// machine those very ones.
func (s *Spec) asks(p power, t *borgpb.TaskSpec) bool {
	if s == nil {
		return false
	}
	for _, need := range s.needs {
		switch {
		case !p.asked(need.Task):
		case p.field == "rootfs" && need.Task.Rootfs != t.Rootfs:
		case p.field == "mounts" && !equalMounts(need.Task.Mounts, t.Mounts):
		default:
			return true
		}
	}
	return false
}

func equalMounts(a, b []*borgpb.Mount) bool {
	return equalSpec(&borgpb.TaskSpec{Mounts: a}, &borgpb.TaskSpec{Mounts: b})
}

// hasPower tells whether who asks has a capability: an admin has all, a task what its
// user was given by name.
func (c *Cell) hasPower(capability Capability) bool {
	who := c.now.asker
	if who.GetUser() == "" || c.Has(who.User, capability) {
		return true
	}
	return who.Task == "" && (c.users.admins == 0 || c.Has(who.User, Admin))
}

func (c *Cell) lacks(p power) *borgpb.Refusal {
	who := c.now.asker.User
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "spec.task."+p.field,
		"user %s needs the capability %s for it, which can be granted by %s", who, p.capability, c.grantWords(who, p.capability))
}

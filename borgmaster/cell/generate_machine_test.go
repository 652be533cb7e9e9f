package cell

import (
	"fmt"
	"strings"

	"borg/proto/borgpb"
)

// Ops about machines, alloc sets, packages and clocks, for the random walk.

func (g *generator) submitAllocSet() *borgpb.Op {
	name := pick(g.r, []string{"p", "q", "a"})
	return &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{
		User: "ann", Name: name, Labels: g.labels(), Spec: marshal(g.t, g.setSpec())}}}
}

func (g *generator) setSpec() *borgpb.AllocSetSpec {
	spec := &borgpb.AllocSetSpec{
		Allocs: uint32(1 + g.r.IntN(4)), Priority: pick(g.r, []int32{50, 110, 200, 400}),
		Resources: &borgpb.Resources{CpuMilli: 1000 + int64(g.r.IntN(3))*1000, MemBytes: 2 << 30, DiskBytes: 2 << 30, Ports: int64(g.r.IntN(5))},
	}
	if g.one(3) {
		spec.MaxPerMachine = 1
	}
	if g.c.format >= formatLimits && g.one(3) {
		spec.MaxPer = map[string]uint32{"arch": 1}
	}
	g.networkOfSet(spec)
	g.volumesOfSet(spec)
	if g.one(3) {
		spec.Resources.Devices = map[string]int64{"gpu": 1}
	}
	g.mayPreempt(&spec.Preempt, &spec.PreemptWaitNs)
	spec.Saver = g.saver()
	return spec
}

func (g *generator) killAllocSet() *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{
		User: "ann", Name: pick(g.r, []string{"p", "q", "z"}), ExpectVersion: g.version()}}}
}

func (g *generator) machineName() string {
	if g.one(30) {
		return "nowhere"
	}
	return fmt.Sprintf("m%d", g.r.IntN(10))
}

func (g *generator) machineOp() *borgpb.Op {
	name := g.machineName()
	m := g.c.Machine(name)
	r := g.r
	switch n := r.IntN(100); {
	case m == nil || n < 10:
		return g.addMachine(name)
	case n < 13:
		return &borgpb.Op{Op: &borgpb.Op_RemoveMachine{RemoveMachine: &borgpb.RemoveMachine{Name: name, Force: g.one(3), GiveUpVolumes: g.c.format >= FormatVolumes && g.one(2)}}}
	case n < 30:
		o := &borgpb.SetMachine{Name: name, ExpectVersion: g.version(), SetAttributes: map[string]string{"rack": fmt.Sprint(r.IntN(3))}}
		if g.one(3) {
			o.Capacity = &borgpb.Resources{CpuMilli: int64(r.IntN(9)) * 1000, MemBytes: 8 << 30, DiskBytes: 20 << 30}
			o.Capacity.Devices = map[string]int64{"gpu": int64(r.IntN(4))}
			g.offerCPUs(o.Capacity, nil)
		}
		if g.one(5) {
			o.PortFirst, o.PortLast = 20000, 20000+uint32(r.IntN(50))
		}
		if g.one(5) {
			o.RemoveAttributes = []string{"rack"}
		}
		if g.one(5) {
			o.SetAttributes[pick(r, []string{"arch", "arch", "kernel", NameAttribute})] = pick(r, []string{"arm", "5"})
		}
		switch {
		case g.one(3):
			o.SetTaints = []*borgpb.Taint{g.taint()}
		case len(m.taints) > 0 && g.one(2):
			o.RemoveTaints = []string{m.taints[0].Key}
		}
		if g.c.format >= FormatPackages && g.one(2) {
			o.Packages = g.packages()
		}
		return &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: o}}
	case (m.down && n < 80) || n < 35:
		return &borgpb.Op{Op: &borgpb.Op_MachineUp{MachineUp: &borgpb.MachineUp{Name: name}}}
	case n < 55:
		term := g.term
		if g.one(4) {
			term--
		}
		return &borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: name, Term: term, Reason: "no answer"}}}
	case !m.draining && n < 85:
		return &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: name, Addr: name + ":7102"}}}
	default:
		o := &borgpb.DrainMachine{Name: name, Drain: !m.draining != g.one(5)}
		if g.c.format >= FormatBudgets && (o.Drain || g.one(20)) {
			switch r.IntN(4) {
			case 0:
				o.DeadlineNs = int64(r.IntN(120)-2) * second
			case 1:
				o.Now = g.one(2)
			}
		}
		o.GiveUpVolumes = g.c.format >= FormatVolumes && (o.Drain && g.one(3) || g.one(20))
		return &borgpb.Op{Reason: pick(r, []string{"", "kernel", "repair"}), Op: &borgpb.Op_DrainMachine{DrainMachine: o}}
	}
}

// testDigests are of packages that can be brought.
var testDigests = []string{
	"sha256:" + strings.Repeat("a1", 32), "sha256:" + strings.Repeat("b2", 32), "sha256:" + strings.Repeat("c3", 32),
}

func (g *generator) packages() *borgpb.PackageChange {
	o := &borgpb.PackageChange{Port: uint32(g.r.IntN(3)) * 7102}
	for _, d := range testDigests {
		switch {
		case g.one(2):
			o.Add = append(o.Add, d)
		case g.one(2):
			o.Remove = append(o.Remove, d)
		}
	}
	switch {
	case g.one(20):
		o.Port = 1 << 16
	case g.one(20):
		o.Add = append(o.Add, "sha256:1")
	}
	return o
}

func (g *generator) addMachine(name string) *borgpb.Op {
	r := g.r
	s := &borgpb.MachineSpec{
		Addr:     name + ":7101",
		Capacity: &borgpb.Resources{CpuMilli: int64(2+r.IntN(8)) * 1000, MemBytes: 8 << 30, DiskBytes: 20 << 30, Devices: map[string]int64{"gpu": int64(r.IntN(4))}},
		Attributes: map[string]string{
			"arch": pick(r, []string{"x86", "arm"}), "kernel": fmt.Sprint(4 + r.IntN(4)), "rack": fmt.Sprint(r.IntN(3)),
		},
		PortFirst: 20000, PortLast: 20000 + uint32(4+r.IntN(40)),
	}
	g.networkOfMachine(s)
	g.offerCPUs(s.Capacity, s.Attributes)
	if g.one(6) {
		s.Taints = []*borgpb.Taint{g.taint()}
	}
	if g.one(20) {
		s.PortLast = 70000
	}
	return &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Labels: g.labels(), Spec: s}}}
}

func (g *generator) taint() *borgpb.Taint {
	t := &borgpb.Taint{Key: pick(g.r, []string{"dedicated", "old"}), Value: pick(g.r, []string{"x", ""}), Evict: g.one(3)}
	t.PreferNot = g.one(5)
	return t
}

// banOp bans packages, for a while or for good, and lifts bans; now and then it
// declares machines lost.
func (g *generator) banOp() *borgpb.Op {
	if g.one(4) {
		return g.user(&borgpb.Op{Op: &borgpb.Op_DeclareLost{DeclareLost: &borgpb.DeclareLost{ForNs: int64(g.r.IntN(4)-1) * 3600 * second}}})
	}
	name, digest, machine := pick(g.r, []string{"tool", "tool", "lib", ""}), pick(g.r, []string{"", "", "sha256:1"}), ""
	if g.one(2) {
		machine = g.machineName()
	}
	if g.one(3) {
		return g.user(&borgpb.Op{Op: &borgpb.Op_UnbanPackage{UnbanPackage: &borgpb.UnbanPackage{Name: name, Digest: digest, Machine: machine}}})
	}
	ban := &borgpb.BanPackage{Name: name, Digest: digest, Machine: machine}
	if g.one(2) {
		ban.ExpiresWallNs = g.wallNs + int64(g.r.IntN(60)-5)*second
	}
	return g.user(&borgpb.Op{Op: &borgpb.Op_BanPackage{BanPackage: ban}})
}

func (g *generator) clockOp() *borgpb.Op {
	switch g.r.IntN(4) {
	case 0:
		return &borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: uint32(g.r.IntN(BuildFormat + 1))}}}
	case 1:
		i, d, ok := g.c.LastDigest()
		o := &borgpb.LogDigest{Index: i, Digest: d[:]}
		if !ok || g.one(4) {
			o.Digest = nil
		}
		return &borgpb.Op{Op: &borgpb.Op_Digest{Digest: o}}
	default:
		return &borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{ConfirmWall: g.one(2)}}}
	}
}

package trace

import (
	"strings"

	"borg/proto/borgpb"
)

// lifecycle adds up what the tasks of an allocation take at once: the main tasks, beside
// those that go on from before them (sidecars), and at least what runs before or after.
type lifecycle struct{ before, main, after borgpb.Resources }

func (l *lifecycle) add(n *Nomad, at *nomadLifecycle, r *borgpb.Resources) {
	switch {
	case at == nil || at.Hook == "" || at.Hook == "poststart":
		n.addTo(&l.main, r)
	case at.Hook == "poststop":
		n.addTo(&l.after, r)
	default:
		n.addTo(&l.before, r)
		if at.Sidecar {
			n.addTo(&l.main, r)
		}
	}
}

// mebibytes are bytes, as far as they go.
func mebibytes(n int64) int64 { return min(max(n, -1), maxQuantity/mebibyte+1) * mebibyte }

func (l *lifecycle) most() *borgpb.Resources {
	r := &borgpb.Resources{}
	for _, of := range []*borgpb.Resources{&l.main, &l.before, &l.after} {
		atLeast(r, of)
	}
	return r
}

// addTo adds amounts, each below what a cell takes.
func (n *Nomad) addTo(r, o *borgpb.Resources) {
	n.cell.bound(o)
	r.CpuMilli, r.MemBytes, r.DiskBytes = r.CpuMilli+o.CpuMilli, r.MemBytes+o.MemBytes, r.DiskBytes+o.DiskBytes
	for name, many := range o.Devices {
		addDevices(r, name, many)
	}
}

func addDevices(r *borgpb.Resources, name string, n int64) {
	if n == 0 {
		return
	}
	if r.Devices == nil {
		r.Devices = make(map[string]int64)
	}
	r.Devices[name] += n
}

// allocated is what an allocation has; where it does not say, what its group asks
// for.
func (n *Nomad) allocated(a *nomadAlloc, g *nomadGroup) *borgpb.Resources {
	r := n.holds(a, g)
	n.cell.bound(r)
	return r
}

func (n *Nomad) holds(a *nomadAlloc, g *nomadGroup) *borgpb.Resources {
	switch {
	case a.AllocatedResources != nil:
		var l lifecycle
		for name, t := range a.AllocatedResources.Tasks {
			r := &borgpb.Resources{CpuMilli: t.CPU.CPUShares, MemBytes: mebibytes(t.Memory.MemoryMB)}
			for _, d := range t.Devices {
				addDevices(r, label(d.Type), int64(len(d.DeviceIDs)))
			}
			at := a.AllocatedResources.TaskLifecycles[name]
			if at == nil && g != nil {
				at = g.lifecycleOf(name)
			}
			l.add(n, at, r)
		}
		r := l.most()
		r.DiskBytes = mebibytes(a.AllocatedResources.Shared.DiskMB)
		return r
	case a.Resources != nil:
		return &borgpb.Resources{CpuMilli: a.Resources.CPU, MemBytes: mebibytes(a.Resources.MemoryMB), DiskBytes: mebibytes(a.Resources.DiskMB)}
	case g != nil:
		return n.wanted(g)
	}
	n.cell.note("allocations that do not say what they have: ask for /v1/allocations?resources=true")
	return &borgpb.Resources{}
}

func (g *nomadGroup) lifecycleOf(task string) *nomadLifecycle {
	for i := range g.Tasks {
		if g.Tasks[i].Name == task {
			return g.Tasks[i].Lifecycle
		}
	}
	return nil
}

// wanted is what a task group asks for.
func (n *Nomad) wanted(g *nomadGroup) *borgpb.Resources {
	var l lifecycle
	for _, t := range g.Tasks {
		if t.Resources == nil {
			continue
		}
		r := &borgpb.Resources{CpuMilli: t.Resources.CPU, MemBytes: mebibytes(t.Resources.MemoryMB)}
		if t.Resources.Cores > 0 {
			r.CpuMilli = min(t.Resources.Cores, maxCores) * n.coreMilli
			n.cell.note("allocations that are missing and ask for cores of their own: they ask for as many MHz as the fastest cores have")
		}
		for _, d := range t.Resources.Devices {
			count := int64(1)
			if d.Count != nil {
				count = *d.Count
			}
			addDevices(r, n.deviceKind(d.Name), count)
			if len(d.Constraints) > 0 {
				n.cell.note("devices with constraints: any of their kind will do")
			}
		}
		l.add(n, t.Lifecycle, r)
	}
	r := l.most()
	if g.EphemeralDisk != nil {
		r.DiskBytes = mebibytes(g.EphemeralDisk.SizeMB)
	}
	n.cell.bound(r)
	return r
}

// maxCores is far above what any machine has.
const maxCores = 1 << 16

// deviceKind is our name of the device that "gpu", "nvidia/gpu" or "nvidia/gpu/T4" asks
// for: its type.
func (n *Nomad) deviceKind(name string) string {
	parts := strings.SplitN(name, "/", 3)
	if len(parts) == 1 {
		return label(parts[0])
	}
	for i := range n.nodes {
		r := n.nodes[i].NodeResources
		if r == nil {
			continue
		}
		for _, d := range r.Devices {
			if d.Type == parts[1] && (d.Vendor != parts[0] || len(parts) == 3 && d.Name != parts[2]) {
				n.cell.note("devices of one maker or model: any of their type will do")
				return label(parts[1])
			}
		}
	}
	return label(parts[1])
}

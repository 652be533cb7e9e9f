package cell

import (
	"fmt"

	"borg/proto/borgpb"
)

// explain puts a failed test into words, with figures.
func (c *Cell) explain(p *Placement, o *Overlay, v *victims, f Fit) *borgpb.Refusal {
	m, a := p.Machine, p.asker()
	kind := borgpb.RefusalKind_REFUSAL_KIND_CONSTRAINT
	var text string
	switch f {
	case FitSeat:
		text = "it is a hole: it belongs to no machine"
		if at := p.Job.Seat(p.Index); at != nil {
			text = "it is the task of machine " + at.name
		}
	case FitVolume:
		text = c.VolumeWords(p.Job, p.Set, p.Index)
	case FitDown:
		text = fmt.Sprintf("%s is down", m.name)
	case FitDraining:
		text = fmt.Sprintf("%s is draining", m.name)
	case FitRestored:
		text = m.closedWords()
	case FitConstraint:
		text = fmt.Sprintf("%s does not satisfy %s", m.name, ConstraintWords(failedConstraint(a.need.Task.Constraints, m)))
	case FitTaint:
		text = fmt.Sprintf("the taint %s of %s is not tolerated", Untolerated(a.need.Task.Tolerations, m).Words(), m.name)
	case FitCrashed:
		text = c.AwayWords(p.Job, p.Index, m.name)
	case FitBanned:
		text = c.Banned(a.need.Task.Packages, m).Words()
	case FitAlloc:
		text = "it must be placed on a machine, not in an alloc"
		if key, ok := p.Job.AllocSet(); ok {
			text = fmt.Sprintf("it must be placed in a running alloc of %s", key)
			if p.Job.AllocByIndex() {
				text = "it must be placed in the alloc of its index: " + c.AllocWords(p.Job, p.Index)
			}
		}
	case FitPlaces:
		text = c.PlacesWords(m, a.by.Priority)
	case FitDomainLimit:
		d, n, _ := fullDomain(p, &a, o, v)
		text = fmt.Sprintf("%s has %d of them already, at most %d are allowed", a.limits.words(d), n, a.limits.Most[d.kind])
	default:
		kind = borgpb.RefusalKind_REFUSAL_KIND_NO_FIT
		free := c.free(p, o, v)
		site := c.site(p)
		text = shortage(f, asked(a.need, &site), &free, p)
		if held := c.HeldPortsWords(m); f == FitPorts && held != "" {
			text += "; " + held
		}
		if f == FitDevices && a.need.Resources.shortOf(&free) == FitOK {
			text = fmt.Sprintf("%s has no such devices free as it asks for", p.where())
			if !p.AnyPorts {
				text = fmt.Sprintf("not all of the devices%s of %s are free", grantWords(p.Devices), p.where())
			}
		}
	}
	return refuse(kind, p.name(), f.String(), "%s", text)
}

// shortage says what lacks and how much is there.
func shortage(f Fit, want, free *Resources, p *Placement) string {
	where := p.where()
	switch f {
	case FitCPU:
		return fmt.Sprintf("needs %d milli-cores, %s has %d free", want.CPUMilli, where, free.CPUMilli)
	case FitMemory:
		return fmt.Sprintf("needs %d bytes of memory, %s has %d free", want.MemBytes, where, free.MemBytes)
	case FitDisk:
		return fmt.Sprintf("needs %d bytes and %d bytes/s of disk, %s has %d and %d free",
			want.DiskBytes, want.DiskBytesPerS, where, free.DiskBytes, free.DiskBytesPerS)
	case FitDevices:
		for _, d := range want.Devices {
			if n := free.Device(d.Name); d.Milli > n {
				return fmt.Sprintf("needs %s %s, %s has %s free", DeviceText(d.Milli), d.Name, where, DeviceText(n))
			}
		}
	}
	if want.Ports > free.Ports {
		return fmt.Sprintf("needs %d ports, %s has %d free", want.Ports, where, free.Ports)
	}
	return fmt.Sprintf("one of the ports %d is not free on %s", p.Ports, p.Machine.name)
}

// where names the place for people.
func (p *Placement) where() string {
	if p.Alloc != nil {
		return p.Alloc.Name()
	}
	return p.Machine.name
}

func (p *Placement) name() string {
	if p.Set != nil {
		return TaskID{p.Set.key, p.Index}.String()
	}
	return TaskID{p.Job.key, p.Index}.String()
}

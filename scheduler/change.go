package scheduler

import (
	"fmt"
	"slices"
	"strconv"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// dimension is one amount of a request.
type dimension struct {
	name  string
	fit   cell.Fit
	asked int64
	// of reads it, set changes it.
	of   func(*cell.Resources) int64
	set  func(*cell.Resources, int64)
	text func(int64) string
	// bytes: it is rounded as bytes are.
	bytes bool
	// device whose single ones count, in the way that they are asked for; empty:
	// what is free is one amount.
	device string
}

// freeOf is how much of a dimension a place has left, at most, for who asks in
// that way.
func (f *search) freeOf(w *want, at spot, d *dimension) int64 {
	have := f.free(w, at)
	n := d.of(&have)
	if d.device == "" || !f.c.NumbersDevices() {
		return n
	}
	q := f.devicesAt(at)
	whole, most := q.Able(d.device, wholeDevice)
	if d.asked < wholeDevice {
		return min(n, most)
	}
	return min(n/wholeDevice, whole, cell.MaxGrantedDevices) * wholeDevice
}

// dimensions lists what is asked for, in the order of the tests.
func dimensions(r *cell.Resources) []dimension {
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	all := []dimension{
		{
			name: "ports", fit: cell.FitPorts, text: count,
			of:  func(r *cell.Resources) int64 { return r.Ports },
			set: func(r *cell.Resources, n int64) { r.Ports = n },
		},
		{
			name: "cpu", fit: cell.FitCPU, text: cpuText,
			of:  func(r *cell.Resources) int64 { return r.CPUMilli },
			set: func(r *cell.Resources, n int64) { r.CPUMilli = n },
		},
		{
			name: "memory", fit: cell.FitMemory, text: bytesText, bytes: true,
			of:  func(r *cell.Resources) int64 { return r.MemBytes },
			set: func(r *cell.Resources, n int64) { r.MemBytes = n },
		},
		{
			name: "disk", fit: cell.FitDisk, text: bytesText, bytes: true,
			of:  func(r *cell.Resources) int64 { return r.DiskBytes },
			set: func(r *cell.Resources, n int64) { r.DiskBytes = n },
		},
		{
			name: "disk bandwidth", fit: cell.FitDisk, bytes: true,
			text: func(n int64) string { return bytesText(n) + "/s" },
			of:   func(r *cell.Resources) int64 { return r.DiskBytesPerS },
			set:  func(r *cell.Resources, n int64) { r.DiskBytesPerS = n },
		},
	}
	for i, d := range r.Devices {
		all = append(all, dimension{
			name: d.Name, fit: cell.FitDevices, device: d.Name,
			text: cell.DeviceText,
			of:   func(r *cell.Resources) int64 { return r.Device(d.Name) },
			set: func(r *cell.Resources, n int64) {
				r.Devices = slices.Clone(r.Devices)
				r.Devices[i].Milli = n
			},
		})
	}
	asked := all[:0]
	for _, d := range all {
		if d.asked = d.of(r); d.asked > 0 {
			asked = append(asked, d)
		}
	}
	return asked
}

// changes tries the smallest single changes of the request and returns those
// with which it would fit somewhere. Nothing is offered when our test and the
// cell's do not agree on the request as it is.
func (e *explanation) changes() []Change {
	asked := e.want.request()
	for i, at := range e.spots {
		if e.probe(e.want, &asked, at) != e.fits[i] {
			return nil
		}
	}
	var out []Change
	try := func(text string, r request) {
		if n := e.machinesFor(&r); n > 0 {
			out = append(out, Change{Change: text, Machines: n, request: r})
		}
	}
	for _, d := range dimensions(&asked.res) {
		if e.want.need.Own && (d.fit == cell.FitCPU || d.device == borgpb.ExclusiveCPU) {
			// One goes with the other, and with the threads of a core.
			continue
		}
		if d.name == "disk" && e.want.volumes.DiskBytes > 0 {
			// A part of it is for volumes.
			continue
		}
		if less, ok := e.mostOf(asked, d); ok {
			r := asked
			d.set(&r.res, less)
			try(fmt.Sprintf("%s %s -> %s", d.name, d.text(d.asked), d.text(less)), r)
		}
	}
	if e.want.need.Own {
		try("drop exclusive_cores", asked.shared())
	}
	for i, k := range asked.constraints {
		if e.want.need.Own && i == len(asked.constraints)-1 {
			continue // it follows from the cores
		}
		r := asked
		r.constraints = slices.Delete(slices.Clone(asked.constraints), i, i+1)
		try("drop constraint "+cell.ConstraintWords(k), r)
	}
	e.tryTaints(asked, try)
	e.tryLimits(asked, try)
	return out
}

// shared is a request for cores of one's own without that: their device and the last
// constraint are gone.
func (r request) shared() request {
	r.constraints = r.constraints[:len(r.constraints)-1]
	r.res = r.res.Sub(cell.Resources{Devices: []cell.Device{{Name: borgpb.ExclusiveCPU, Milli: r.res.Device(borgpb.ExclusiveCPU)}}})
	return r
}

// machinesFor counts the machines with a place for r. The probe of an alloc is
// that of the one that came furthest as things are, so for tasks in allocs the
// others are tried too.
func (e *explanation) machinesFor(r *request) int {
	n := 0
	for i := range e.spots {
		if e.anySpot(i, func(at spot) bool { return e.probe(e.want, r, at) == cell.FitOK }) {
			n++
		}
	}
	return n
}

// anySpot tells whether yes holds for any place on machine i.
func (e *explanation) anySpot(i int, yes func(spot) bool) bool {
	at := e.spots[i]
	if at.alloc == nil {
		return yes(at)
	}
	for a := range at.site.machine.Allocs() {
		if a.Set() == e.want.set && a.Machine() == at.site.machine && yes(spot{site: at.site, alloc: a}) {
			return true
		}
	}
	return false
}

// mostOf finds the largest amount of one dimension with which the request
// would fit somewhere, everything else as it is.
func (e *explanation) mostOf(asked request, d dimension) (most int64, ok bool) {
	r := asked
	d.set(&r.res, 1)
	for i := range e.spots {
		e.anySpot(i, func(at spot) bool {
			if e.probe(e.want, &r, at) == cell.FitOK {
				most = max(most, e.freeOf(e.want, at, &d))
			}
			return false
		})
	}
	most = roundDown(most, d.bytes)
	return most, most > 0 && most < d.asked
}

// tryTaints tries to tolerate each taint that kept the task away.
func (e *explanation) tryTaints(asked request, try func(string, request)) {
	var tried []cell.Taint
	for i, f := range e.fits {
		if f != cell.FitTaint {
			continue
		}
		t := cell.Untolerated(asked.tolerations, e.spots[i].site.machine)
		if t == nil || slices.ContainsFunc(tried, func(o cell.Taint) bool { return o.Key == t.Key && o.Value == t.Value }) {
			continue
		}
		tried = append(tried, *t)
		r := asked
		r.tolerations = append(slices.Clone(asked.tolerations), toleration(t))
		try("tolerate taint "+t.Words(), r)
	}
}

// tryLimits tries the next higher limit of each failure domain at which there
// is room.
func (e *explanation) tryLimits(asked request, try func(string, request)) {
	for kind, most := range asked.limits.Most {
		if most == 0 {
			continue
		}
		r := asked
		r.limits.Most[kind] = 0
		least := uint32(0)
		for i := range e.spots {
			e.anySpot(i, func(at spot) bool {
				if e.probe(e.want, &r, at) == cell.FitOK {
					if n := uint32(e.inDomain(at.site.slot, cell.DomainKind(kind))) + 1; least == 0 || n < least {
						least = n
					}
				}
				return false
			})
		}
		if least > most {
			r.limits.Most[kind] = least
			try(fmt.Sprintf("%s %d -> %d", asked.limits.Field(cell.DomainKind(kind)), most, least), r)
		}
	}
}

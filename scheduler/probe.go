package scheduler

import (
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// request is what a task asks for, in a form that Explain can change to see
// what would help.
type request struct {
	constraints []*borgpb.Constraint
	tolerations []*borgpb.Toleration
	res         cell.Resources
	packages    []*borgpb.Package
	limits      cell.Limits
}

// request returns what w asks for, as it is.
func (w *want) request() request {
	r := request{tolerations: w.tolerations(), res: w.need.Resources, packages: w.need.Task.GetPackages(), limits: *w.limits}
	for _, k := range w.constraints() {
		if !k.GetSoft() {
			r.constraints = append(r.constraints, k)
		}
	}
	return r
}

// probe is the cell's test, made for a request that nobody submitted. It says
// the same as the cell for the one that somebody did; before any change is
// offered, that is made sure.
func (f *search) probe(w *want, r *request, at spot) cell.Fit {
	m := at.site.machine
	switch {
	case f.placement.Elsewhere(m):
		return cell.FitSeat
	case !w.volumes.Fits(m):
		return cell.FitVolume
	case !m.Up():
		return cell.FitDown
	case m.Draining():
		return cell.FitDraining
	case m.Closed():
		return cell.FitRestored
	}
	for _, k := range r.constraints {
		if !cell.Holds(k, m) {
			return cell.FitConstraint
		}
	}
	switch {
	case cell.Untolerated(r.tolerations, m) != nil:
		return cell.FitTaint
	case w.away.From(m.Name()):
		return cell.FitCrashed
	case f.c.Banned(r.packages, m) != nil:
		return cell.FitBanned
	}
	if w.inSet && at.alloc == nil {
		return cell.FitAlloc
	}
	if f.s.grid.crowded.has(at.site.slot) && !f.hasPlace(w, at.site.slot) {
		return cell.FitPlaces
	}
	for kind, most := range r.limits.Most {
		if most > 0 && f.inDomain(at.site.slot, cell.DomainKind(kind)) >= int64(most) {
			return cell.FitDomainLimit
		}
	}
	if fit := short(&r.res, f.free(w, at)); fit != cell.FitOK || len(r.res.Devices) == 0 {
		return fit
	}
	if q := f.devicesAt(at); f.c.NumbersDevices() && !q.Fit(r.res.Devices) {
		return cell.FitDevices
	}
	return cell.FitOK
}

// free is what a place has left, promises taken off.
func (f *search) free(w *want, at spot) cell.Resources {
	_, left := f.left(w, at)
	return left.Add(w.need.Resources)
}

// short names the first dimension in which res asks for more than there is.
func short(res *cell.Resources, free cell.Resources) cell.Fit {
	switch {
	case res.Ports > 0 && res.Ports > free.Ports:
		return cell.FitPorts
	case res.CPUMilli > 0 && res.CPUMilli > free.CPUMilli:
		return cell.FitCPU
	case res.MemBytes > 0 && res.MemBytes > free.MemBytes:
		return cell.FitMemory
	case res.DiskBytes > 0 && res.DiskBytes > free.DiskBytes,
		res.DiskBytesPerS > 0 && res.DiskBytesPerS > free.DiskBytesPerS:
		return cell.FitDisk
	}
	for _, d := range res.Devices {
		if d.Milli > free.Device(d.Name) {
			return cell.FitDevices
		}
	}
	return cell.FitOK
}

// toleration returns the one that lets a task onto machines with t.
func toleration(t *cell.Taint) *borgpb.Toleration {
	return &borgpb.Toleration{Key: t.Key, Value: t.Value}
}

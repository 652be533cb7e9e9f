package scheduler

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// ProbeDiffers compares the probe with the cell's own test for a task on every
// machine, as Explain does before it offers changes.
func ProbeDiffers(s *Scheduler, c *cell.Cell, key cell.JobKey, index uint32) error {
	s.open(c)
	l, err := s.lineOf(c, key, index)
	if err != nil {
		return err
	}
	e := newExplanation(s, c, l, index)
	e.examine()
	r := e.want.request()
	for i, at := range e.spots {
		if got := e.probe(e.want, &r, at); got != e.fits[i] {
			return fmt.Errorf("%s/%d on %s: the probe says %s, the cell %s", key, index, at.site.machine.Name(), got, e.fits[i])
		}
	}
	return nil
}

// Changed returns spec with what ch changes of it.
func (ch Change) Changed(spec *borgpb.JobSpec) *borgpb.JobSpec {
	spec = proto.CloneOf(spec)
	var soft []*borgpb.Constraint
	for _, k := range spec.Task.Constraints {
		if k.GetSoft() {
			soft = append(soft, k)
		}
	}
	spec.Task.Constraints = append(soft, ch.request.constraints...)
	spec.Task.Tolerations = ch.request.tolerations
	spec.Task.Resources = ch.request.res.Proto()
	spec.Task.Resources.Ports = 0
	spec.Task.Ports = spec.Task.Ports[:ch.request.res.Ports]
	spec.MaxPerMachine, spec.MaxPerRack, spec.MaxPerPower = ch.request.most[0], ch.request.most[1], ch.request.most[2]
	return spec
}

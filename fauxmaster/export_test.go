package fauxmaster

import (
	"context"
	"fmt"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// FailMachines switches machines off and has the master call them down.
func (s *Server) FailMachines(ctx context.Context, names []string) error {
	s.world.Do(func() {
		for _, name := range names {
			s.machines.byName[name].Lose()
		}
	})
	var term uint64
	s.log.View(func(c *cell.Cell) { term = c.Term() })
	for _, name := range names {
		op := &borgpb.Op{Principal: asMaster, Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: name, Term: term, Reason: "it is lost"}}}
		r, err := s.log.Propose(ctx, op)
		if err == nil && r.GetRefusal() != nil {
			err = fmt.Errorf("%s: %s", name, r.GetRefusal().GetMessage())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

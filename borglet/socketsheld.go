package borglet

import (
	"context"
	"time"

	"borg/borglet/sockets"
	"borg/proto/borgpb"
)

// socketsEvery is how often what tasks share is looked at: what tasks can take
// between two looks is bounded by it.
const socketsEvery = 100 * time.Millisecond

// SocketsHeld is an event: what copies hold of what all tasks of a machine share.
type SocketsHeld struct {
	Machine sockets.Use
	Copies  map[ID]sockets.Use
	// The runs that held it. A later run of a copy is not to blame.
	Runs map[ID]uint32
}

func (SocketsHeld) event() {}

// socketsHeld ends the runs that hold more than they may.
func (c *Core) socketsHeld(ev SocketsHeld) {
	var holders []sockets.Holder[ID]
	for _, id := range c.ids {
		if held, known := ev.Copies[id]; known && c.copies[id].phase == running && c.copies[id].Run == ev.Runs[id] {
			priority := c.copies[id].Desired.GetPriority()
			holders = append(holders, sockets.Holder[ID]{ID: id, Priority: priority, IsProduction: priority >= productionPriority, Held: held})
		}
	}
	for _, f := range sockets.Over(ev.Machine, holders) {
		c.atFault(AtFault{ID: f.ID, Run: c.copies[f.ID].Run, Reason: borgpb.ExitReason_EXIT_REASON_SOCKETS, Text: f.Why})
	}
}

// watchSockets looks at the machine's sockets until ctx ends.
func (a *Agent) watchSockets(ctx context.Context) {
	var protectedDue time.Time
	ticker := time.NewTicker(socketsEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var found []Event
		if a.cfg.SocketsHeld != nil {
			if ev, is := a.cfg.SocketsHeld(); is {
				found = append(found, ev)
			}
		}
		if now := time.Now(); !now.Before(protectedDue) {
			protectedDue = now.Add(protectedEvery)
			found = append(found, a.onProtectedPorts()...)
		}
		for _, ev := range found {
			select {
			case a.results <- ev:
			case <-ctx.Done():
				return
			}
		}
	}
}

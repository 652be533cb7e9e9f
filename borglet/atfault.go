package borglet

import "borg/proto/borgpb"

// AtFault is an event: a run harms others and is ended for it.
type AtFault struct {
	ID     ID
	Run    uint32
	Reason borgpb.ExitReason
	// What it did, for its user.
	Text string
}

func (AtFault) event() {}

// atFault ends a run for what it does to others.
func (c *Core) atFault(ev AtFault) {
	t := c.copies[ev.ID]
	if t == nil || t.Run != ev.Run || t.phase != running || t.squeezed != "" {
		return
	}
	t.squeezed, t.fault = ev.Text, ev.Reason
	c.emit(Kill{t.ID, t.Run})
	t.dueNs = c.now.MonoNs + retryNs
}

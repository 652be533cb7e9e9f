package borglet

import (
	"fmt"
	"time"
)

// A batch task may say how long one of its runs may take. The time is that of the
// machine, from the start of the process; a borglet that is restarted counts on.

// mayRunOver reports whether the present run is one that can take too long.
func (t *task) mayRunOver() bool {
	return t.batch() && t.Desired.GetSpec().GetMaxRuntimeNs() > 0 && t.phase == running && t.Stop == nil && !t.Quarantined && t.health.ended == ""
}

// limitRun sets when the present run has taken too long. It is called when a process
// runs, and when what is said of it has changed.
func (c *Core) limitRun(t *task) {
	t.overNs = 0
	if t.mayRunOver() {
		ran := max(c.now.WallNs-t.StartedWallNs, 0)
		t.overNs = c.now.MonoNs + max(t.Desired.GetSpec().GetMaxRuntimeNs()-ran, 1)
	}
}

// runOver ends a run that has taken too long.
func (c *Core) runOver(t *task) {
	t.overNs = 0
	if !t.mayRunOver() {
		return
	}
	t.health.overran = true
	c.endRun(t, fmt.Sprintf("max_runtime: it ran for longer than %v", time.Duration(t.Desired.GetSpec().GetMaxRuntimeNs())))
}

package cell

import (
	"fmt"

	"borg/proto/borgpb"
)

// FormatStandIns is the format in which the extra tasks of an update that was given up began
// to stay until as many tasks of the job run as it has.
const FormatStandIns = 10

// standsIn tells whether an update that ends like that may leave extra tasks: nobody has
// taken its place, and tasks are down for it.
func (c *Cell) standsIn(to borgpb.UpdateState) bool {
	return c.format >= FormatStandIns &&
		(to == borgpb.UpdateState_UPDATE_STATE_ABORTED || to == borgpb.UpdateState_UPDATE_STATE_FAILED)
}

// standDown ends those extra tasks of an update that was given up for which nobody is down
// any more. They go from the last index on; one that does not run stands in for nobody.
func (c *Cell) standDown(j *Job) {
	u := j.update
	was := u.Extra()
	if was == 0 || u.Rolling() {
		return
	}
	for ; u.extra > 0; u.extra-- {
		if last := j.rows[len(j.rows)-1]; last.runs() && j.started <= j.Size() {
			break
		}
		c.cutLast(j, borgpb.StopCause_STOP_CAUSE_UPDATE, "an extra task of update "+u.uid.String()+", which was given up and needs it no more")
	}
	if u.extra == was {
		return
	}
	words := "without extra tasks"
	if u.extra > 0 {
		words = fmt.Sprintf("%d extra, until as many run without", u.extra)
	}
	c.extraChanged(j, words)
}

func (t *Task) runs() bool { return t.cur != nil && t.cur.state == attemptRunning }

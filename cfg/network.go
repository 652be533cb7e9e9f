package cfg

import (
	"fmt"

	"borg/proto/borgpb"
)

// network checks that tasks in an alloc say nothing of what is the alloc's.
func (c check) network(j *borgpb.JobSpec) {
	if j.AllocSet == "" {
		return
	}
	bad := func(where string, t *borgpb.TaskSpec) {
		if t.GetNetwork() != borgpb.Network_NETWORK_UNSPECIFIED {
			c.bad(join(where, "network"), fmt.Sprintf("leave it out, and say it of alloc set %s", quote(j.AllocSet)), "tasks in an alloc have the network of the alloc")
		}
	}
	bad("task", j.Task)
	for i, o := range j.Overrides {
		bad(fmt.Sprintf("overrides[%d].spec", i), o.Spec)
	}
}

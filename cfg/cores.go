package cfg

import (
	"fmt"

	"borg/proto/borgpb"
)

// cores checks what tasks with cores of their own must say.
func (c check) cores(j *borgpb.JobSpec) {
	c.coresOf("task", j, j.Task, j.Task)
	for i, o := range j.Overrides {
		if o.Spec != nil {
			c.coresOf(join(fmt.Sprintf("overrides[%d]", i), "spec"), j, o.Spec, j.Task)
		}
	}
}

// coresOf checks what t says, and what it does not say otherwise says.
func (c check) coresOf(where string, j *borgpb.JobSpec, t, otherwise *borgpb.TaskSpec) {
	res, class := t.Resources, t.AppClass
	if res == nil {
		res = otherwise.Resources
	}
	if class == borgpb.AppClass_APP_CLASS_UNSPECIFIED {
		class = otherwise.AppClass
	}
	ends := j.Kind == borgpb.JobKind_JOB_KIND_BATCH || j.Kind == borgpb.JobKind_JOB_KIND_CRON
	at := join(where, "exclusive_cores")
	switch {
	case !t.ExclusiveCores && !otherwise.ExclusiveCores:
	case j.AllocSet != "":
		c.bad(at, "leave out alloc_set, or exclusive_cores", "a task in an alloc runs where its alloc does, beside others")
	case class == borgpb.AppClass_APP_CLASS_BATCH || ends && class == borgpb.AppClass_APP_CLASS_UNSPECIFIED:
		c.bad(at, `leave it out, or write app_class = "latency_sensitive"`, "cores are kept free for latency-sensitive tasks only")
	case res.GetCpuMilli()%1000 != 0:
		c.bad(join(where, "resources.cpu_milli"), "cores are whole: ask for 1, 2, 3 ... cpu", "a task with exclusive cores cannot have %s cpu", amountText(res.GetCpuMilli(), unitCPU))
	}
}

package cfg

import (
	"fmt"
	"strings"

	"borg/proto/borgpb"
)

// complete fills in what the file left out, and remembers why each value is
// what it is.
func (d *decoder) complete(o *Object) {
	if o.Kind == KindAllocSet {
		d.completeAllocSet(o.AllocSet)
		return
	}
	d.completeJob(o, o.Job)
}

// absent tells whether the file is silent on a field; a zero that was written
// is not absent.
func (d *decoder) absent(path string) bool {
	_, ok := d.origins[path]
	return !ok
}

func (d *decoder) byDefault(path, why string) { d.origins[path] = Origin{Default: why} }

func (d *decoder) completeJob(o *Object, j *borgpb.JobSpec) {
	if d.absent("kind") {
		j.Kind = borgpb.JobKind_JOB_KIND_SERVICE
		d.byDefault("kind", "default: a job is a service unless it says otherwise")
	}
	if d.absent("priority") {
		j.Priority = 200
		word := "service"
		if j.Kind == borgpb.JobKind_JOB_KIND_BATCH || j.Kind == borgpb.JobKind_JOB_KIND_CRON {
			j.Priority, word = 110, "batch"
		}
		d.byDefault("priority", fmt.Sprintf("default: %s jobs are of band %s", word, BandOf(j.Priority)))
	}
	if d.absent("tasks") && j.Kind != borgpb.JobKind_JOB_KIND_DAEMON {
		j.Tasks = 1
		d.byDefault("tasks", "default: one task")
	}
	ends := j.Kind == borgpb.JobKind_JOB_KIND_BATCH || j.Kind == borgpb.JobKind_JOB_KIND_CRON
	if d.absent("max_failures") && ends {
		j.MaxFailures = defaultMaxFailures
		d.byDefault("max_failures", fmt.Sprintf("default: a task of a batch job may fail %d times", defaultMaxFailures))
	}
	if j.Update == nil {
		j.Update = &borgpb.UpdatePolicy{}
		d.byDefault("update", "default: one task after another")
	}
	if j.Update.BatchSize == 0 && j.Update.Surge == 0 {
		j.Update.BatchSize = 1
		d.byDefault("update.batch_size", "default: one task after another")
	}
	if j.Task != nil {
		if d.absent("task.grace_ns") {
			j.Task.GraceNs = defaultGraceNs
			d.byDefault("task.grace_ns", "default: 30 s between SIGTERM and SIGKILL")
		}
		d.completeHealth(j.Task)
	}
	j.AllocSet = ownKey(o.User, j.AllocSet)
	j.Parent = ownKey(o.User, j.Parent)
	for i, name := range j.StartAfter {
		j.StartAfter[i] = ownKey(o.User, name)
	}
}

func (d *decoder) completeHealth(t *borgpb.TaskSpec) {
	h := t.Health
	if h == nil {
		return
	}
	if len(h.Command) == 0 && h.Port == "" && len(t.Ports) > 0 {
		h.Port = t.Ports[0]
		d.byDefault("task.health.port", "default: the first port")
	}
}

func (d *decoder) completeAllocSet(a *borgpb.AllocSetSpec) {
	if d.absent("allocs") {
		a.Allocs = 1
		d.byDefault("allocs", "default: one alloc")
	}
	if d.absent("priority") {
		a.Priority = 200
		d.byDefault("priority", "default: alloc sets are of band production")
	}
}

// ownKey makes "<user>/<name>" of a name that stands for one's own object.
func ownKey(user, name string) string {
	if name == "" || strings.Contains(name, "/") {
		return name
	}
	return user + "/" + name
}

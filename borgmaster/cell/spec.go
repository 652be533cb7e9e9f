package cell

import (
	"bytes"
	"maps"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// Spec is one version of a job's spec. It never changes.
type Spec struct {
	mark
	job     *Job
	Version uint64
	*reading
	// Copies that run it; derived.
	uses uint32
	gone bool
}

// Need is what a run of task indices asks for: the job's task spec with the
// overrides for these indices. It never changes.
type Need struct {
	First, Last uint32
	Resources   Resources
	// Late-bound names ({{...}}) are as the owner wrote them. The constraints,
	// tolerations and ports of an alloc set's Need are here too. It has no environment
	// if that is merged of several: see Merged.
	Task *borgpb.TaskSpec
	// Environments of which a later one overrides an earlier one, shared with other needs
	// of the spec; nil if Task has all.
	envs []map[string]string
	// Own: it has its processors alone, whole cores.
	Own bool
}

// Merged returns Task with its whole environment. It must not be changed, and takes as
// much memory as the environment: it is made for each call.
func (n *Need) Merged() *borgpb.TaskSpec {
	if len(n.envs) == 0 {
		return n.Task
	}
	t := new(borgpb.TaskSpec)
	copyFields(t, n.Task)
	t.Env = make(map[string]string)
	for _, env := range n.envs {
		maps.Copy(t.Env, env)
	}
	return t
}

// Need returns what task index asks for.
func (s *Spec) Need(index uint32) *Need {
	lo, hi := 0, len(s.needs)-1
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if s.needs[mid].First <= index {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return s.needs[lo]
}

// readSpec decodes and checks a job spec.
func (c *Cell) readSpec(key JobKey, data []byte) (*Spec, *borgpb.Refusal) {
	return c.readSpecOf(key, data, c.format >= FormatCores)
}

// readSpecOf is readSpec of a spec that was committed when exclusive cores had an effect,
// or when they had none.
func (c *Cell) readSpecOf(key JobKey, data []byte, cores bool) (*Spec, *borgpb.Refusal) {
	if was := c.readings.of(data, c.format); was != nil && (was.cores == cores || !asksCores(was.Proto)) {
		if r := checkJobSpec(key, was.Proto, c.format); r != nil {
			return nil, r
		}
		return &Spec{reading: was}, nil
	}
	weight, r := weighSpec(jobShape, data)
	if r != nil {
		return nil, r
	}
	p := new(borgpb.JobSpec)
	if r := decode(data, p, c.format); r != nil {
		return nil, r
	}
	if r := checkJobSpec(key, p, c.format); r != nil {
		return nil, r
	}
	s := &reading{Bytes: bytes.Clone(data), Proto: p, weight: weight, limits: limitsOf(p), cores: cores && asksCores(p)}
	if p.AllocSet != "" {
		s.allocSet, _ = ParseJobKey(p.AllocSet)
	}
	if r := s.cutNeeds(cores); r != nil {
		return nil, r
	}
	// Of a trial only a copy of the cell is its own, and others read the map meanwhile.
	if c.now.trial == nil {
		c.readings.keep(s, c.format)
	}
	return &Spec{reading: s}, nil
}

// cutNeeds cuts the indices where an override begins or ends and merges the
// overrides of each run.
func (s *reading) cutNeeds(cores bool) *borgpb.Refusal {
	overrides := overrideSizes(s.Proto)
	cuts := cutsOf(overrides)
	if r := s.checkMergeWork(cuts, overrides); r != nil {
		return r
	}
	if r := s.checkEnvs(); r != nil {
		return r
	}
	for i, first := range cuts {
		last := uint32(1<<32 - 1)
		if i+1 < len(cuts) {
			last = cuts[i+1] - 1
		}
		task, field := s.Proto.Task, "spec.task"
		var envs []map[string]string
		for _, o := range s.Proto.Overrides {
			if o.First <= first && first <= o.Last {
				envs = layer(envs, task.Env, o.Spec.GetEnv())
				task, field = override(task, o.Spec, task == s.Proto.Task), "spec.overrides"
			}
		}
		if r := checkEnvSize(task.Env, envs, field); r != nil {
			return r
		}
		if len(envs) > 0 {
			task.Env = nil
		}
		if r := checkTask(task, field); r != nil {
			return r
		}
		if r := checkNetwork(s.Proto, task, field); r != nil {
			return r
		}
		if r := checkJobVolumes(s.Proto, task, field); r != nil {
			return r
		}
		if r := checkMaxRuntime(s.Proto, task, field); r != nil {
			return r
		}
		need := &Need{First: first, Last: last, Task: Networked(task), Resources: FromProto(task.Resources), envs: envs}
		need.Resources.Ports = int64(len(task.Ports))
		if cores {
			if r := checkCores(s.Proto, task, field); r != nil {
				return r
			}
			if task.ExclusiveCores {
				need.own()
			}
		}
		for _, name := range secretsNamed(task) {
			if at, found := slices.BinarySearch(s.secrets, name); !found {
				s.secrets = slices.Insert(s.secrets, at, name)
			}
		}
		s.volumes = s.volumes || len(task.Volumes) > 0
		s.needs = append(s.needs, need)
	}
	return nil
}

// checkMergeWork bounds what merging and checking the runs costs: a small spec
// could otherwise hold up every replica for seconds.
func (s *reading) checkMergeWork(cuts []uint32, overrides []overrideSize) *borgpb.Refusal {
	base := s.Proto.Task
	work := mergeWork(cuts, len(base.Env), len(base.Args), overrides)
	if work > maxMergeWork {
		return limit("spec.overrides", "%d runs of indices with %d arguments and variables each are too much to merge; use fewer or smaller overrides",
			len(cuts), len(base.Env)+len(base.Args))
	}
	return nil
}

func overrideSizes(p *borgpb.JobSpec) []overrideSize {
	sizes := make([]overrideSize, 0, len(p.Overrides))
	for _, o := range p.Overrides {
		sizes = append(sizes, overrideSize{o.First, o.Last, len(o.Spec.GetEnv()), len(o.Spec.GetArgs())})
	}
	return sizes
}

// checkEnvs range-checks all environments of a spec: merging them makes none wrong.
func (s *reading) checkEnvs() *borgpb.Refusal {
	if r := checkEnv(s.Proto.Task.GetEnv(), "spec.task"); r != nil {
		return r
	}
	for _, o := range s.Proto.Overrides {
		if r := checkEnv(o.Spec.GetEnv(), "spec.overrides"); r != nil {
			return r
		}
	}
	return nil
}

// checkEnvSize bounds the variables of a task: its own, or those of all layers.
func checkEnvSize(own map[string]string, layers []map[string]string, field string) *borgpb.Refusal {
	n := 0
	for _, env := range layers {
		n += len(env)
	}
	if n = max(n, len(own)); n > maxEnv {
		return limit(field+".env", "%d variables, with those of overrides; a task has at most %d. Give it more in a file", n, maxEnv)
	}
	return nil
}

// layer puts one environment more over those of a task, which has env if there are none.
// The result is nil while one map holds all.
func layer(envs []map[string]string, env, over map[string]string) []map[string]string {
	switch {
	case len(over) == 0 || len(envs) == 0 && len(env) == 0:
		return envs
	case len(envs) == 0:
		return []map[string]string{env, over}
	}
	return append(envs, over)
}

// override returns base with the fields that are set in o; the caller layers the
// environments. fresh: base belongs to the spec and must be copied first.
func override(base, o *borgpb.TaskSpec, fresh bool) *borgpb.TaskSpec {
	t := base
	if fresh {
		t = new(borgpb.TaskSpec)
		copyFields(t, base)
	}
	copyFields(t, o)
	return t
}

// constrained is a task that wants one thing more of its machine than its owner wrote.
func constrained(t *borgpb.TaskSpec, k *borgpb.Constraint) *borgpb.TaskSpec {
	more := new(borgpb.TaskSpec)
	copyFields(more, t)
	more.Constraints = append(slices.Clip(t.Constraints), k)
	return more
}

// copyFields sets in dst every field that is set in src, sharing the values.
func copyFields(dst, src *borgpb.TaskSpec) {
	d := dst.ProtoReflect()
	src.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		d.Set(fd, v)
		return true
	})
}

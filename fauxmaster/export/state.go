package export

import (
	"fmt"
	"strings"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// MachineRow is a machine at the moment of the checkpoint. Held is what is promised
// on it, by limits and by reservations.
type MachineRow struct {
	Machine          string            `parquet:"machine" json:"machine"`
	State            string            `parquet:"state" json:"state"`
	Draining         bool              `parquet:"draining" json:"draining"`
	CPUMilli         int64             `parquet:"cpu_milli" json:"cpu_milli"`
	MemBytes         int64             `parquet:"mem_bytes" json:"mem_bytes"`
	DiskBytes        int64             `parquet:"disk_bytes" json:"disk_bytes"`
	LimitCPUMilli    int64             `parquet:"limit_cpu_milli" json:"limit_cpu_milli"`
	LimitMemBytes    int64             `parquet:"limit_mem_bytes" json:"limit_mem_bytes"`
	ReservedCPUMilli int64             `parquet:"reserved_cpu_milli" json:"reserved_cpu_milli"`
	ReservedMemBytes int64             `parquet:"reserved_mem_bytes" json:"reserved_mem_bytes"`
	Tasks            int64             `parquet:"tasks" json:"tasks"`
	Attributes       map[string]string `parquet:"attributes" json:"attributes"`
}

// JobRow is a job.
type JobRow struct {
	User         string `parquet:"user" json:"user"`
	Job          string `parquet:"job" json:"job"`
	UID          string `parquet:"uid" json:"uid"`
	State        string `parquet:"state" json:"state"`
	Kind         string `parquet:"kind" json:"kind"`
	Priority     int64  `parquet:"priority" json:"priority"`
	Tasks        int64  `parquet:"tasks" json:"tasks"`
	Pending      int64  `parquet:"pending" json:"pending"`
	Running      int64  `parquet:"running" json:"running"`
	Dead         int64  `parquet:"dead" json:"dead"`
	AllocSet     string `parquet:"alloc_set" json:"alloc_set"`
	Parent       string `parquet:"parent" json:"parent"`
	SubmittedNs  int64  `parquet:"submitted_ns" json:"submitted_ns"`
	MaxPerMach   int64  `parquet:"max_per_machine" json:"max_per_machine"`
	MaxPerRack   int64  `parquet:"max_per_rack" json:"max_per_rack"`
	MaxPerPower  int64  `parquet:"max_per_power" json:"max_per_power"`
	SchedulerFor string `parquet:"scheduler" json:"scheduler"`
}

// TaskRow is a task.
type TaskRow struct {
	User             string `parquet:"user" json:"user"`
	Job              string `parquet:"job" json:"job"`
	Index            int64  `parquet:"index" json:"index"`
	State            string `parquet:"state" json:"state"`
	Reason           string `parquet:"reason" json:"reason"`
	Priority         int64  `parquet:"priority" json:"priority"`
	Machine          string `parquet:"machine" json:"machine"`
	Alloc            string `parquet:"alloc" json:"alloc"`
	Attempt          int64  `parquet:"attempt" json:"attempt"`
	LimitCPUMilli    int64  `parquet:"limit_cpu_milli" json:"limit_cpu_milli"`
	LimitMemBytes    int64  `parquet:"limit_mem_bytes" json:"limit_mem_bytes"`
	LimitDiskBytes   int64  `parquet:"limit_disk_bytes" json:"limit_disk_bytes"`
	ReservedCPUMilli int64  `parquet:"reserved_cpu_milli" json:"reserved_cpu_milli"`
	ReservedMemBytes int64  `parquet:"reserved_mem_bytes" json:"reserved_mem_bytes"`
	StartedNs        int64  `parquet:"started_ns" json:"started_ns"`
}

// Counts is how many rows each table got.
type Counts map[string]int

// State writes the tables machines, jobs and tasks into dir.
func State(c *cell.Cell, f Format, dir string, n Counts) error {
	if err := writeAll(f, dir, "machines", n, func(yield func(MachineRow) bool) {
		for m := range c.Machines() {
			if !yield(machineRow(m)) {
				return
			}
		}
	}); err != nil {
		return err
	}
	if err := writeAll(f, dir, "jobs", n, func(yield func(JobRow) bool) {
		for j := range c.Jobs() {
			if !yield(jobRow(c, j)) {
				return
			}
		}
	}); err != nil {
		return err
	}
	return writeAll(f, dir, "tasks", n, func(yield func(TaskRow) bool) {
		for j := range c.Jobs() {
			for _, t := range j.Tasks() {
				if !yield(taskRow(j, t)) {
					return
				}
			}
		}
	})
}

// writeAll writes one table.
func writeAll[T any](f Format, dir, name string, n Counts, rows func(func(T) bool)) error {
	t, err := create[T](f, dir, name)
	if err != nil {
		return err
	}
	rows(func(row T) bool {
		if err = t.add(row); err == nil {
			n[name]++
		}
		return err == nil
	})
	if cerr := t.close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("table %s: %w", name, err)
	}
	return nil
}

func word(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

func machineRow(m *cell.Machine) MachineRow {
	whole, limits, reserved := m.Capacity(), m.Held(true), m.Held(false)
	return MachineRow{
		Machine: m.Name(), State: word(m.State().String(), "MACHINE_STATE_"), Draining: m.Draining(),
		CPUMilli: whole.CPUMilli, MemBytes: whole.MemBytes, DiskBytes: whole.DiskBytes,
		LimitCPUMilli: limits.CPUMilli, LimitMemBytes: limits.MemBytes, ReservedCPUMilli: reserved.CPUMilli, ReservedMemBytes: reserved.MemBytes,
		Tasks: int64(m.NumCopies()), Attributes: m.Attributes(),
	}
}

func jobRow(c *cell.Cell, j *cell.Job) JobRow {
	pending, running, dead := j.Counts()
	spec := j.Spec()
	return JobRow{
		User: j.Key().User, Job: j.Key().Name, UID: j.UID().String(), State: word(j.State().String(), "STATE_"), Kind: word(j.Kind().String(), "JOB_KIND_"),
		Priority: int64(j.Priority()), Tasks: int64(j.NumTasks()), Pending: int64(pending), Running: int64(running), Dead: int64(dead),
		AllocSet: spec.GetAllocSet(), Parent: spec.GetParent(), SubmittedNs: c.JobProto(j).GetStatus().GetSubmittedWallNs(),
		MaxPerMach: int64(spec.GetMaxPerMachine()), MaxPerRack: int64(spec.GetMaxPerRack()), MaxPerPower: int64(spec.GetMaxPerPower()), SchedulerFor: spec.GetScheduler(),
	}
}

func taskRow(j *cell.Job, t *cell.Task) TaskRow {
	id := t.ID()
	limit := j.Need(id.Index).Resources
	row := TaskRow{
		User: id.Job.User, Job: id.Job.Name, Index: int64(id.Index), State: word(t.State().String(), "STATE_"), Reason: t.Reason(), Priority: int64(j.Priority()),
		Attempt: int64(t.Attempt()), LimitCPUMilli: limit.CPUMilli, LimitMemBytes: limit.MemBytes, LimitDiskBytes: limit.DiskBytes,
	}
	if p := t.Current(); p != nil && t.State() == borgpb.State_STATE_RUNNING {
		held := p.Held(false)
		row.Machine, row.StartedNs, row.ReservedCPUMilli, row.ReservedMemBytes = p.Machine().Name(), p.StartedWallNs(), held.CPUMilli, held.MemBytes
		if a := p.Alloc(); a != nil {
			row.Alloc = a.Name()
		}
	}
	return row
}

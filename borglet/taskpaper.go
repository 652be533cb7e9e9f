package borglet

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TaskPaper is the file beside a copy's papers that tells the task of itself: its limits,
// priority, labels and annotations. It is replaced as a whole when any of them changes in
// place. What cannot change is in the environment too.
const TaskPaper = "task.json"

// taskPaper is the content of the file.
type taskPaper struct {
	Cell    string `json:"cell"`
	Job     string `json:"job"`
	Task    string `json:"task"`
	Index   uint32 `json:"index"`
	Attempt uint64 `json:"attempt"`
	Machine string `json:"machine"`
	Kind    string `json:"kind"`
	// Version of the job's spec that the task runs with.
	Version  uint64      `json:"version"`
	Priority int32       `json:"priority"`
	Limits   paperLimits `json:"limits"`
	// What all in the alloc have together; absent without an alloc.
	Alloc       string            `json:"alloc,omitempty"`
	AllocLimits *paperLimits      `json:"alloc_limits,omitempty"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// paperLimits are limits as a task reads them. Zero: none.
type paperLimits struct {
	CPUMilli      int64 `json:"cpu_milli"`
	MemBytes      int64 `json:"mem_bytes"`
	DiskBytes     int64 `json:"disk_bytes"`
	DiskBytesPerS int64 `json:"disk_bytes_per_s"`
}

func paperLimitsOf(r *borgpb.Resources) paperLimits {
	return paperLimits{CPUMilli: r.GetCpuMilli(), MemBytes: r.GetMemBytes(), DiskBytes: r.GetDiskBytes(), DiskBytesPerS: r.GetDiskBytesPerS()}
}

func kindWord(k borgpb.JobKind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "JOB_KIND_"))
}

func newTaskPaper(r Record, machine string) *taskPaper {
	d := r.Desired
	p := &taskPaper{
		Cell: d.GetCell(), Job: d.GetUser() + "/" + d.GetJob(), Task: (&task{Record: r}).name(), Index: r.ID.Index, Attempt: r.ID.Attempt,
		Machine: machine, Kind: kindWord(d.GetKind()), Version: d.GetVersion(), Priority: d.GetPriority(),
		Limits: paperLimitsOf(d.GetSpec().GetResources()), Labels: d.GetLabels().GetLabels(), Annotations: d.GetLabels().GetAnnotations(),
	}
	if p.Alloc = d.GetAlloc(); p.Alloc != "" {
		limits := paperLimitsOf(d.GetAllocResources())
		p.AllocLimits = &limits
	}
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	return p
}

// tell tells a task of itself. A task that cannot be told is not kept from running.
func (a *Agent) tell(r Record) {
	if err := a.papers.tell(r.ID, newTaskPaper(r, a.cfg.Name)); err != nil {
		a.cfg.Log.Warn("a task is not told of itself", "machine", a.cfg.Name, "copy", r.ID.String(), "err", err)
	}
}

// tell puts the file beside the papers of a copy; one without papers gets none.
func (p *papers) tell(id ID, of *taskPaper) error {
	if p == nil {
		return nil
	}
	text, err := json.MarshalIndent(of, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", TaskPaper, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, live := p.due[id]; !live {
		return nil
	}
	path := filepath.Join(p.path(id), TaskPaper)
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o444); err != nil {
		return fullPapers(errors.Join(fmt.Errorf("write %s: %w", TaskPaper, err), os.Remove(path+".new")))
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write %s: %w", TaskPaper, err)
	}
	return nil
}

// relabel takes in other labels of a copy that has not ended.
func (c *Core) relabel(t *task, d *borgrpc.Desired) {
	if t == nil || t.phase == ended || t.Desired == nil || d.GetLabels() == nil || d.GetLabelMark() == t.Desired.GetLabelMark() {
		return
	}
	next := proto.CloneOf(t.Desired)
	next.Labels, next.LabelMark = d.Labels, d.LabelMark
	t.Desired = next
	c.emit(Save{t.Record})
	if t.phase == starting || t.phase == running {
		c.emit(Tell{t.Record})
	}
}

// labelledAs is what is wanted now with the labels that were held, if it brings none: a mark
// is kept only with its labels.
func labelledAs(d, was *borgrpc.Desired) *borgrpc.Desired {
	if d.GetLabels() != nil || d.GetLabelMark() == 0 && was.GetLabelMark() == 0 {
		return d
	}
	d = proto.CloneOf(d)
	d.Labels, d.LabelMark = was.GetLabels(), was.GetLabelMark()
	return d
}

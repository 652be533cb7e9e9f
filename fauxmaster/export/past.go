package export

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// PastAbout says of what the tables of a Past are.
type PastAbout struct {
	Cell string
	// The wall time at which the window begins; what was before is at time 0.
	FirstWallNs int64
	// The largest machine; a share of 1 is so much.
	LargestCPUMilli, LargestMemBytes int64
}

// Past writes the tables of Google's trace from what masters remember, without the
// cell: what is known of objects comes beside their events.
type Past struct {
	e *Events
	// The wall time of the newest entry so far; zero: none has come.
	lastWallNs int64
	// Guarded by nobody: a Past has one user.
	collections map[string]*borgpb.ObjectFacts
	machines    map[string]*borgpb.ObjectFacts
	// Events of objects of which nothing is known.
	Unknown int
}

// NewPast begins the tables, in dir.
func NewPast(about PastAbout, f Format, dir string, n Counts) (*Past, error) {
	largest := cell.Resources{CPUMilli: about.LargestCPUMilli, MemBytes: about.LargestMemBytes}
	e, err := newEvents(About{Cell: about.Cell, FirstWallNs: about.FirstWallNs}, largest, f, dir, n)
	if err == nil {
		e.earlyZero = true
		e.usage, err = create[InstanceUsage](f, dir, "instance_usage")
		n["instance_usage"] = 0
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return &Past{e: e, collections: make(map[string]*borgpb.ObjectFacts), machines: make(map[string]*borgpb.ObjectFacts)}, nil
}

// Close ends the tables.
func (p *Past) Close() error { return p.e.Close() }

// Picture tells what was known of an object without an event. What is not known yet is
// there from the beginning of the trace on. A picture of a machine that is known says what events
// did not tell, of a gap in the journal: it counts from the newest entry before it.
func (p *Past) Picture(f *borgpb.ObjectFacts) error {
	if f.Kind == borgpb.ObjectKind_OBJECT_KIND_MACHINE {
		was := p.machines[f.Name]
		p.learn(f)
		if was != nil {
			return p.correct(was, f)
		}
		m, _ := p.machine(f.Name)
		err := p.e.machine(0, m, machineAdd)
		if err == nil && f.Down {
			err = p.e.machine(0, m, machineRemove)
		}
		return errors.Join(err, p.e.failed)
	}
	_, known := p.collections[f.Uid]
	p.learn(f)
	if known {
		return nil
	}
	k, ok := p.collection(f.Uid)
	if !ok {
		return nil
	}
	if err := p.e.thereWhole(k, f.State); err != nil {
		return err
	}
	for _, at := range f.Instances {
		state := borgpb.State_STATE_PENDING
		if at.Machine != "" {
			state = borgpb.State_STATE_RUNNING
		}
		if err := p.e.there(k, at.Index, state, at.Machine); err != nil {
			return err
		}
	}
	return p.e.failed
}

// correct writes how a machine in a picture differs from what events told of it.
func (p *Past) correct(was, f *borgpb.ObjectFacts) error {
	m, _ := p.machine(f.Name)
	us := p.e.us(p.lastWallNs)
	var err error
	switch {
	case was.Down && !f.Down:
		err = p.e.machine(us, m, machineAdd)
	case !was.Down && f.Down:
		err = p.e.machine(us, m, machineRemove)
	case !proto.Equal(was.Capacity, f.Capacity) || was.Rack != f.Rack || was.Platform != f.Platform:
		err = p.e.machine(us, m, machineUpdate)
	}
	return errors.Join(err, p.e.failed)
}

func (p *Past) learn(f *borgpb.ObjectFacts) {
	if f.Kind == borgpb.ObjectKind_OBJECT_KIND_MACHINE {
		p.machines[f.Name] = f
	} else {
		p.collections[f.Uid] = f
	}
}

// Add writes what came of one entry.
func (p *Past) Add(entry *borgpb.JournalEntry) error {
	p.lastWallNs = max(p.lastWallNs, entry.WallNs)
	for _, f := range entry.Facts {
		p.learn(f)
	}
	for _, ev := range entry.Events {
		told := &event{wallNs: ev.WallNs, kind: ev.Kind, objectKind: ev.ObjectKind, uid: ev.Uid, machine: ev.Machine, from: ev.From, to: ev.To}
		switch ev.ObjectKind {
		case borgpb.ObjectKind_OBJECT_KIND_TASK, borgpb.ObjectKind_OBJECT_KIND_ALLOC:
			id, err := cell.ParseTaskID(ev.Object)
			if err != nil {
				return fmt.Errorf("event %d of entry %d: %w", ev.N, ev.Index, err)
			}
			told.task = id.Index
			if _, ok := p.collections[ev.Uid]; !ok {
				p.Unknown++
			}
		}
		if err := p.e.add(p, told); err != nil {
			return err
		}
		if f := p.machines[ev.Machine]; f != nil && ev.Kind == borgpb.EventKind_EVENT_KIND_MACHINE_REMOVE {
			// A picture that has it again says that it came back.
			p.machines[ev.Machine] = &borgpb.ObjectFacts{Kind: f.Kind, Name: f.Name, Down: true}
		}
	}
	return p.e.failed
}

// Use writes what a copy used.
func (p *Past) Use(u *borgpb.UsageRow) error {
	k, ok := p.collection(u.JobUid)
	if !ok {
		p.Unknown++
		return nil
	}
	row := InstanceUsage{
		StartTime: p.e.us(u.FromNs), EndTime: p.e.us(u.ToNs), CollectionID: p.e.id("collection", k.uid), InstanceIndex: int32(u.Index), MachineID: p.e.id("machine", u.Machine),
		AllocInstanceIndex: -1, CollectionType: k.kind(), SampleRate: 1,
		AverageUsage: p.e.share(cell.Resources{CPUMilli: u.CpuMilliMean, MemBytes: u.MemBytesMean}),
		MaximumUsage: p.e.share(cell.Resources{CPUMilli: u.CpuMilliPeak, MemBytes: u.MemBytesPeak}),
	}
	if k.in != "" {
		row.AllocCollectionID = p.e.id("collection", k.in)
	}
	limit, _ := k.need(u.Index)
	row.AssignedMemory = p.e.share(limit).Memory
	p.e.n["instance_usage"]++
	return errors.Join(p.e.usage.add(row), p.e.failed)
}

func (p *Past) collection(uid string) (collection, bool) {
	f := p.collections[uid]
	if f == nil {
		return collection{}, false
	}
	key, err := cell.ParseJobKey(f.Name)
	if err != nil {
		return collection{}, false
	}
	k := named(uid, key)
	k.size, k.priority, k.queued, k.batch = f.Size, f.Priority, f.Queued, f.JobKind == borgpb.JobKind_JOB_KIND_BATCH
	k.isSet = f.Kind == borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET
	k.in, k.parent, k.after = f.AllocSetUid, f.ParentUid, f.AfterUids
	k.maxPerMachine, k.maxPerRack = f.MaxPerMachine, f.MaxPerRack
	k.need = func(index uint32) (cell.Resources, []*borgpb.Constraint) {
		var at *borgpb.NeedFacts
		for _, n := range f.Needs {
			// One beyond the end asks for what the last one does.
			if at = n; index <= n.Last {
				break
			}
		}
		r := at.GetResources()
		return cell.Resources{CPUMilli: r.GetCpuMilli(), MemBytes: r.GetMemBytes(), DiskBytes: r.GetDiskBytes()}, at.GetConstraints()
	}
	return k, true
}

func (p *Past) machine(name string) (machine, bool) {
	f := p.machines[name]
	if f == nil {
		return machine{}, false
	}
	return machine{name, f.Rack, f.Platform, cell.Resources{CPUMilli: f.Capacity.GetCpuMilli(), MemBytes: f.Capacity.GetMemBytes()}}, true
}

package export

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// EventType of Google's collections and instances.
const (
	evSubmit = iota
	evQueue
	evEnable
	evSchedule
	evEvict
	evFail
	evFinish
	evKill
	evLost
	evUpdatePending
	evUpdateRunning
)

// MachineEvent.type.
const (
	machineAdd = iota + 1
	machineRemove
	machineUpdate
)

var eventTypes = map[borgpb.EventKind]int32{
	borgpb.EventKind_EVENT_KIND_SUBMIT: evSubmit, borgpb.EventKind_EVENT_KIND_ENABLE: evEnable, borgpb.EventKind_EVENT_KIND_SCHEDULE: evSchedule,
	borgpb.EventKind_EVENT_KIND_EVICT: evEvict, borgpb.EventKind_EVENT_KIND_FAIL: evFail, borgpb.EventKind_EVENT_KIND_FINISH: evFinish,
	borgpb.EventKind_EVENT_KIND_KILL: evKill, borgpb.EventKind_EVENT_KIND_LOST: evLost,
	borgpb.EventKind_EVENT_KIND_UPDATE_PENDING: evUpdatePending, borgpb.EventKind_EVENT_KIND_UPDATE_RUNNING: evUpdateRunning,
}

// windowUs is where Google's traces begin; 0 is what was before.
const windowUs = 600_000_000

// Events writes the event tables. What is there at the beginning comes at time 0.
type Events struct {
	n           Counts
	dir         string
	collections table[CollectionEvent]
	instances   table[InstanceEvent]
	machines    table[MachineEvent]
	names       table[Name]
	named       map[int64]bool
	// firstNs is the wall time that windowUs stands for.
	firstNs int64
	largest cell.Resources
	// failed is why a name could not be written.
	failed error
	// What was before firstNs is at time 0, not at the beginning of the window.
	earlyZero bool
	// usage is nil where there is none.
	usage table[InstanceUsage]
	// open are the tasks and allocs that have not ended.
	open map[string]map[uint32]bool
}

// About says what the shares and times of the event tables are of.
type About struct {
	Cell string `json:"cell"`
	// FirstWallNs is the wall time of 600,000,000 microseconds.
	FirstWallNs int64 `json:"firstWallNs"`
	// A share of 1 is so much.
	LargestCPUMilli int64 `json:"largestCpuMilli"`
	LargestMemBytes int64 `json:"largestMemBytes"`
}

// NewEvents begins with a cell as it is.
func NewEvents(c *cell.Cell, name string, f Format, dir string, n Counts) (*Events, error) {
	var largest cell.Resources
	for m := range c.Machines() {
		largest = larger(largest, m.Capacity())
	}
	e, err := newEvents(About{Cell: name, FirstWallNs: c.WallNs()}, largest, f, dir, n)
	if err == nil {
		err = e.begin(c)
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func larger(a, b cell.Resources) cell.Resources {
	return cell.Resources{CPUMilli: max(a.CPUMilli, b.CPUMilli), MemBytes: max(a.MemBytes, b.MemBytes)}
}

// newEvents begins the tables. What it returns is to be closed, also with an error.
func newEvents(about About, largest cell.Resources, f Format, dir string, n Counts) (*Events, error) {
	e := &Events{n: n, dir: dir, named: make(map[int64]bool), firstNs: about.FirstWallNs, largest: largest, open: make(map[string]map[uint32]bool)}
	var err error
	step := func(do func() error) {
		if err == nil {
			err = do()
		}
	}
	step(func() (err error) {
		e.collections, err = create[CollectionEvent](f, dir, "collection_events")
		return err
	})
	step(func() (err error) { e.instances, err = create[InstanceEvent](f, dir, "instance_events"); return err })
	step(func() (err error) { e.machines, err = create[MachineEvent](f, dir, "machine_events"); return err })
	step(func() (err error) { e.names, err = create[Name](f, dir, "names"); return err })
	step(func() error {
		about.LargestCPUMilli, about.LargestMemBytes = largest.CPUMilli, largest.MemBytes
		data, err := json.MarshalIndent(about, "", "  ")
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "about.json"), append(data, '\n'), 0o644)
	})
	return e, err
}

// Close ends the tables.
func (e *Events) Close() (err error) {
	if e.collections != nil {
		err = errors.Join(err, e.collections.close())
	}
	if e.instances != nil {
		err = errors.Join(err, e.instances.close())
	}
	if e.machines != nil {
		err = errors.Join(err, e.machines.close())
	}
	if e.usage != nil {
		err = errors.Join(err, e.usage.close())
	}
	if e.names != nil {
		err = errors.Join(err, e.names.close())
	}
	return err
}

// begin writes what is there as if it had just come, at time 0.
func (e *Events) begin(c *cell.Cell) error {
	for m := range c.Machines() {
		if err := e.machine(0, ofMachine(m), machineAdd); err != nil {
			return err
		}
		if !m.Up() {
			if err := e.machine(0, ofMachine(m), machineRemove); err != nil {
				return err
			}
		}
	}
	for s := range c.AllocSets() {
		if s.State() == borgpb.State_STATE_DEAD {
			continue
		}
		if err := e.thereWhole(ofSet(s), s.State()); err != nil {
			return err
		}
		for a := range s.Allocs() {
			if err := e.there(ofSet(s), a.Index(), a.State(), nameOf(a.Machine())); err != nil {
				return err
			}
		}
	}
	for j := range c.Jobs() {
		if j.State() == borgpb.State_STATE_DEAD {
			continue
		}
		if err := e.thereWhole(ofJob(c, j), j.State()); err != nil {
			return err
		}
		for i, t := range j.Tasks() {
			machine := ""
			if p := t.Current(); p != nil {
				machine = p.Machine().Name()
			}
			if err := e.there(ofJob(c, j), i, t.State(), machine); err != nil {
				return err
			}
		}
	}
	return nil
}

func nameOf(m *cell.Machine) string {
	if m == nil {
		return ""
	}
	return m.Name()
}

// thereWhole writes a collection that is there at the beginning.
func (e *Events) thereWhole(k collection, state borgpb.State) error {
	err := e.collection(0, evSubmit, k)
	if state == borgpb.State_STATE_RUNNING && err == nil {
		err = e.collection(0, evSchedule, k)
	}
	return err
}

// there writes an instance that is there at the beginning.
func (e *Events) there(k collection, index uint32, state borgpb.State, machine string) error {
	if state == borgpb.State_STATE_DEAD {
		return nil
	}
	err := e.instance(0, evSubmit, k, index, "")
	if state == borgpb.State_STATE_RUNNING && err == nil {
		err = e.instance(0, evSchedule, k, index, machine)
	}
	return err
}

// source is what is known of objects at an event.
type source interface {
	collection(uid string) (collection, bool)
	machine(name string) (machine, bool)
}

// inCell knows what a cell knows.
type inCell struct{ *cell.Cell }

func (c inCell) collection(uid string) (collection, bool) {
	id, err := cell.ParseUID(uid)
	if err != nil {
		return collection{}, false
	}
	if j := c.JobByUID(id); j != nil {
		return ofJob(c.Cell, j), true
	}
	if s := c.AllocSetByUID(id); s != nil {
		return ofSet(s), true
	}
	return collection{}, false
}

func (c inCell) machine(name string) (machine, bool) {
	m := c.Machine(name)
	if m == nil {
		return machine{}, false
	}
	return ofMachine(m), true
}

// machine is what is told of one.
type machine struct {
	name, rack, platform string
	capacity             cell.Resources
}

func ofMachine(m *cell.Machine) machine {
	k := machine{name: m.Name(), capacity: m.Capacity()}
	k.rack, _ = m.Attribute("rack")
	k.platform, _ = m.Attribute("platform")
	return k
}

// event is one of a cell, as far as it is told.
type event struct {
	wallNs     int64
	kind       borgpb.EventKind
	objectKind borgpb.ObjectKind
	uid        string
	task       uint32
	machine    string
	from, to   borgpb.State
}

// instanceType is the type of an instance's event. The schema has no word for some events
// that change the state of an instance, such as the return of a task with its machine: they
// are of the type of the same change.
func (ev *event) instanceType() (kind int32, told bool) {
	if kind, told = eventTypes[ev.kind]; told {
		return kind, true
	}
	switch pending, running := borgpb.State_STATE_PENDING, borgpb.State_STATE_RUNNING; {
	case ev.from == pending && ev.to == running:
		return evSchedule, true
	case ev.from == running && ev.to == pending:
		return evEvict, true
	}
	return 0, false
}

// Add writes what came of one entry, in the cell as it is after it.
func (e *Events) Add(c *cell.Cell, events []cell.Event) error {
	for i := range events {
		ev := &events[i]
		if err := e.add(inCell{c}, &event{ev.WallNs, ev.Kind, ev.ObjectKind, ev.UID.String(), ev.Task, ev.Machine, ev.From, ev.To}); err != nil {
			return err
		}
	}
	return e.failed
}

func (e *Events) add(c source, ev *event) error {
	us := e.us(ev.wallNs)
	switch ev.objectKind {
	case borgpb.ObjectKind_OBJECT_KIND_MACHINE:
		return e.addMachine(c, us, ev)
	case borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET:
		return e.addCollection(c, us, ev)
	case borgpb.ObjectKind_OBJECT_KIND_TASK, borgpb.ObjectKind_OBJECT_KIND_ALLOC:
		k, ok := c.collection(ev.uid)
		kind, told := ev.instanceType()
		if !ok || !told {
			return nil
		}
		err := e.instance(us, kind, k, ev.task, ev.machine)
		if err == nil && ev.from == borgpb.State_STATE_RUNNING && ev.to == borgpb.State_STATE_PENDING {
			err = e.instance(us, evSubmit, k, ev.task, "")
		}
		return err
	}
	return nil
}

func (e *Events) addMachine(c source, us int64, ev *event) error {
	kind := int32(machineUpdate)
	switch ev.kind {
	case borgpb.EventKind_EVENT_KIND_MACHINE_ADD, borgpb.EventKind_EVENT_KIND_MACHINE_UP:
		kind = machineAdd
	case borgpb.EventKind_EVENT_KIND_MACHINE_REMOVE:
		return e.machineRow(MachineEvent{Time: us, MachineID: e.id("machine", ev.machine), Type: machineRemove})
	case borgpb.EventKind_EVENT_KIND_MACHINE_DOWN:
		kind = machineRemove
	case borgpb.EventKind_EVENT_KIND_MACHINE_SET:
	default:
		return nil
	}
	if m, ok := c.machine(ev.machine); ok {
		return e.machine(us, m, kind)
	}
	return nil
}

// addCollection writes what happened to a job or alloc set, and to those of its
// tasks that come or go with it without an event of their own.
func (e *Events) addCollection(c source, us int64, ev *event) error {
	k, ok := c.collection(ev.uid)
	if !ok {
		return nil
	}
	if kind, told := eventTypes[ev.kind]; told {
		if err := e.collection(us, kind, k); err != nil {
			return err
		}
		if kind == evSubmit && k.queued {
			if err := e.collection(us, evQueue, k); err != nil {
				return err
			}
		}
		if ev.to == borgpb.State_STATE_DEAD {
			for _, index := range e.stillOpen(ev.uid, 0) {
				if err := e.instance(us, kind, k, index, ""); err != nil {
					return err
				}
			}
			return nil
		}
	}
	if ev.kind != borgpb.EventKind_EVENT_KIND_SUBMIT && ev.kind != borgpb.EventKind_EVENT_KIND_RESIZE {
		return nil
	}
	for _, index := range e.stillOpen(ev.uid, k.size) {
		if err := e.instance(us, evKill, k, index, ""); err != nil {
			return err
		}
	}
	for index := range k.size {
		if !e.open[ev.uid][index] {
			if err := e.instance(us, evSubmit, k, index, ""); err != nil {
				return err
			}
		}
	}
	return nil
}

// stillOpen are the instances from an index on that have not ended.
func (e *Events) stillOpen(uid string, from uint32) (all []uint32) {
	for index := range e.open[uid] {
		if index >= from {
			all = append(all, index)
		}
	}
	slices.Sort(all)
	return all
}

func (e *Events) machine(us int64, m machine, kind int32) error {
	return e.machineRow(MachineEvent{
		Time: us, MachineID: e.id("machine", m.name), Type: kind, SwitchID: m.rack, PlatformID: m.platform, Capacity: e.share(m.capacity),
	})
}

// us is a moment in Google's traces. What was before they begin is at 0.
func (e *Events) us(wallNs int64) int64 {
	if e.earlyZero && wallNs < e.firstNs {
		return 0
	}
	return windowUs + max(wallNs-e.firstNs, 0)/1000
}

func (e *Events) machineRow(row MachineEvent) error {
	e.n["machine_events"]++
	return e.machines.add(row)
}

func (e *Events) share(r cell.Resources) Share {
	return Share{float64(r.CPUMilli) / float64(max(e.largest.CPUMilli, 1)), float64(r.MemBytes) / float64(max(e.largest.MemBytes, 1))}
}

// id is the number that stands for a name: the same in every export.
func (e *Events) id(kind, name string) int64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %s", kind, name)
	id := int64(h.Sum64() >> 2)
	if !e.named[id] {
		e.named[id] = true
		e.n["names"]++
		if err := e.names.add(Name{id, kind, name}); e.failed == nil {
			e.failed = err
		}
	}
	return id
}

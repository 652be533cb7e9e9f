package trace

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"strings"

	"borg/proto/borgpb"
)

// Google2019 reads tables in the schema of Google's trace of 2019
// (clusterdata_trace_format_v3), as BigQuery exports them and as export writes them,
// up to one moment. Rows may come in any order: those up to the moment (or up to
// where what arrives is followed) are kept and sorted, and then replayed as those of
// 2011 are.
type Google2019 struct {
	replay      *Google2011
	collections map[int64]*collection2019
	events      []event2019
	machines    []machineEvent2011
	attributes  map[int64]map[string]attribute2019
	// shared are the lists of constraints, by their words, each once.
	shared map[string][]*borgpb.Constraint
	// said are the names that an export tells of numbers.
	said         map[int64]string
	machineNames *names
	users        *userNames
	notes        map[string]int
	// live are the instances that have not ended, of each what it does.
	live map[task2011ID]int8
	// later are the rows beyond what is replayed, of tasks of which nobody has said
	// what they ask for.
	later []event2019
	// began is when the first instance of a collection was there; ended, when the
	// collection was over.
	began, ended map[int64]int64
	// lastUs is the time of the last row that was replayed.
	lastUs int64
	jobs   *jobs2019
	sets   *allocSets2019
}

// collection2019 is a job or an alloc set.
type collection2019 struct {
	// saidUs is the time of the row that says what follows.
	saidUs              int64
	user, name, logical string
	isSet               bool
	class               int8
	priority            int16
	alloc, parent       int64
	after               []int64
	perMachine, perRack uint32
	scaled              bool
	batch, enabled      bool
	// told: collection_events has a row of it. begun: it had an instance, and stays what
	// it was then.
	told, begun bool
}

// event2019 is a row of instance_events, or of collection_events when it says that a
// collection is over: then it has the index wholeCollection.
type event2019 struct {
	atUs int64
	id   task2011ID
	// seq is the place among the rows that were read.
	seq   int32
	what  int8
	isSet bool
	said  task2011
}

const wholeCollection = math.MaxInt32

type attribute2019 struct {
	atUs    int64
	value   string
	deleted bool
}

// Events of collections and instances in 2019.
const (
	submit2019 = iota
	queue2019
	enable2019
	schedule2019
	evict2019
	fail2019
	finish2019
	kill2019
	lost2019
	updatePending2019
	updateRunning2019
)

var (
	eventNames2019    = []string{"SUBMIT", "QUEUE", "ENABLE", "SCHEDULE", "EVICT", "FAIL", "FINISH", "KILL", "LOST", "UPDATE_PENDING", "UPDATE_RUNNING"}
	machineNames2019  = []string{"UNKNOWN", "ADD", "REMOVE", "UPDATE"}
	kindNames2019     = []string{"JOB", "ALLOC_SET"}
	classNames2019    = []string{"MOST_INSENSITIVE", "INSENSITIVE", "SENSITIVE", "MOST_SENSITIVE"}
	schedulers2019    = []string{"DEFAULT", "BATCH"}
	scalingNames2019  = []string{"UNKNOWN", "OFF", "CONSTRAINED", "FULLY_AUTOMATED"}
	missingNames2019  = []string{"NONE", "SNAPSHOT_BUT_NO_TRANSITION", "NO_SNAPSHOT_OR_TRANSITION", "EXISTS_BUT_NO_CREATION", "TRANSITION_MISSING_STEP", "TOO_MANY_EVENTS"}
	reasonNames2019   = []string{"NONE", "SNAPSHOT_BUT_NO_TRANSITION"}
	relationNames2019 = []string{"EQUAL", "NOT_EQUAL", "LESS_THAN", "GREATER_THAN", "LESS_THAN_EQUAL", "GREATER_THAN_EQUAL", "PRESENT", "NOT_PRESENT"}
	// As an event of 2011. Queueing and being enabled is of jobs; of instances they
	// say no more than that one is pending.
	as2011 = [...]int64{submit2011, updatePending2011, updatePending2011, schedule2011, evict2011, fail2011, finish2011, kill2011, lost2011, updatePending2011, updateRunning2011}
)

// Priorities go to 450.
const maxPriority2019 = 450

// NewGoogle2019 makes an empty cell at timeUs, in the trace's own time; with an
// untilUs above it what arrives until then is taken, too.
func NewGoogle2019(timeUs, untilUs int64) *Google2019 {
	o := &Google2019{
		replay: NewGoogle2011(timeUs), collections: make(map[int64]*collection2019), attributes: make(map[int64]map[string]attribute2019),
		shared: make(map[string][]*borgpb.Constraint), said: make(map[int64]string), machineNames: newNames(), users: newUserNames(),
		notes: make(map[string]int), live: make(map[task2011ID]int8), began: make(map[int64]int64), ended: make(map[int64]int64),
	}
	o.replay.SkipBadRows()
	if untilUs > timeUs {
		o.replay.Follow(untilUs)
	}
	o.jobs, o.sets = newJobs2019(o), newAllocSets2019(o)
	o.replay.begin, o.replay.machineNamed = o.jobs.begin, o.machineNamed
	o.replay.allocOf = o.sets.nameOf
	return o
}

// setLargest says of what machine the amounts are shares.
func (o *Google2019) setLargest(l Largest) { o.replay.largest = l }

func (o *Google2019) note(words string) { o.notes[words]++ }

// machineNamed is the name of a machine: as an export says, or made of its number.
func (o *Google2019) machineNamed(id int64) string {
	theirs := o.said[id]
	if theirs == "" {
		theirs = machineName(id)
	}
	return o.machineNames.name(theirs)
}

// readNames reads names, a table of exports of ours, which says what machines are
// called.
func (o *Google2019) readNames(r *rows) error {
	const id, kind, name = 0, 1, 2
	for o.replay.lenient(r).next() {
		number := r.whole(id, 0, maxID2011)
		r.keep(&o.replay.kept, keptTextBytes)
		if r.err == nil && r.text(kind) == "machine" {
			o.said[number] = o.replay.kept.text(r.text(name))
		}
	}
	return r.err
}

// readMachineEvents reads machine_events.
func (o *Google2019) readMachineEvents(r *rows) error {
	const timeUs, id, event, rack, cpu, mem, platform, reason = 0, 1, 2, 3, 4, 5, 6, 7
	for o.replay.lenient(r).next() {
		e := machineEvent2011{atUs: r.whole(timeUs, 0, math.MaxInt64), id: r.whole(id, 1, maxID2011), rack: o.replay.kept.text(r.short(rack)), platform: o.replay.kept.text(r.short(platform)), cpu: -1, mem: -1}
		// ADD is 1, and 0 in 2011.
		e.what = r.oneOf(event, machineNames2019) - 1
		if e.what < 0 {
			r.fail(event, "want ADD, REMOVE or UPDATE, not %s", brief(r.text(event)))
		}
		if share, ok := r.maybeShare(cpu, 1); ok {
			e.cpu = share
		}
		if share, ok := r.maybeShare(mem, 1); ok {
			e.mem = share
		}
		why := r.oneOf(reason, reasonNames2019)
		if r.err != nil || e.atUs > o.replay.readUntilUs() {
			continue
		}
		if why > 0 {
			o.note("rows of machine_events that Google made up (missing_data_reason)")
		}
		if e.what == 1 {
			// What it had is of no use, and where it is not known it is zero.
			e.cpu, e.mem = -1, -1
		}
		r.keep(&o.replay.kept, keptItemBytes)
		o.machines = append(o.machines, e)
	}
	return r.err
}

// short is a text no longer than the value of an attribute.
func (r *rows) short(column int) string {
	text := r.text(column)
	if len(text) > maxValueBytes {
		r.fail(column, "%s has %d bytes, want at most %d", brief(text), len(text), maxValueBytes)
	}
	return text
}

// readMachineAttributes reads machine_attributes.
func (o *Google2019) readMachineAttributes(r *rows) error {
	const timeUs, id, name, value, deleted = 0, 1, 2, 3, 4
	for o.replay.lenient(r).next() {
		now, machine := r.whole(timeUs, 0, math.MaxInt64), r.whole(id, 1, maxID2011)
		key, is := o.replay.attribute(r, name, value)
		gone := r.oneOf(deleted, []string{"false", "true"})
		if r.err != nil || now > o.replay.timeUs {
			continue
		}
		r.keep(&o.replay.kept, keptItemBytes)
		of := o.attributes[machine]
		if of == nil {
			of = make(map[string]attribute2019)
			o.attributes[machine] = of
		}
		if was, ok := of[key]; !ok || now >= was.atUs {
			of[key] = attribute2019{now, is, gone == 1}
		}
	}
	return r.err
}

// readCollectionEvents reads collection_events.
func (o *Google2019) readCollectionEvents(r *rows) error {
	const timeUs, event, id, alloc, user, name, logical, parent, after, perMachine, perSwitch, scaling, scheduler = 0, 1, 2, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16
	for o.replay.lenient(r).next() {
		e := o.eventOf(r, timeUs, event, id)
		c := collection2019{
			saidUs: e.atUs, told: true, isSet: e.isSet, class: e.said.class, priority: e.said.priority,
			user: o.replay.kept.text(r.text(user)), name: o.replay.kept.text(r.text(name)), logical: o.replay.kept.text(r.text(logical)),
		}
		c.alloc, _ = r.maybeWhole(alloc, 0, maxID2011)
		c.parent, _ = r.maybeWhole(parent, 0, maxID2011)
		for _, one := range list[loose](r, after) {
			c.after = append(c.after, r.idOf(after, string(one)))
		}
		most, _ := r.maybeWhole(perMachine, 0, math.MaxInt32)
		c.perMachine = uint32(most)
		most, _ = r.maybeWhole(perSwitch, 0, math.MaxInt32)
		c.perRack = uint32(most)
		c.scaled = r.oneOf(scaling, scalingNames2019) > 1
		c.batch = r.oneOf(scheduler, schedulers2019) == 1
		missing := r.oneOf(missingColumn2019, missingNames2019)
		if r.err != nil || e.atUs > o.replay.readUntilUs() {
			continue
		}
		o.notMissing("collection_events", missing)
		r.keep(&o.replay.kept, 2*keptItemBytes+8*int64(len(c.after)))
		o.hear(e.id.job, &c)
		switch e.what {
		case enable2019, schedule2019, updateRunning2019:
			if e.atUs <= o.replay.timeUs {
				o.collections[e.id.job].enabled = true
			}
		case fail2019, finish2019, kill2019, lost2019:
			e.id.index = wholeCollection
			o.keep(e)
		}
	}
	return r.err
}

// hear takes in what a row says of a collection. The last one counts, but rows that
// end one may leave out what it belongs to.
func (o *Google2019) hear(id int64, c *collection2019) {
	was := o.collections[id]
	if was == nil {
		o.collections[id] = c
		return
	}
	later, earlier := c, was
	if c.saidUs < was.saidUs {
		later, earlier = was, c
	}
	later.user, later.name, later.logical = cmp.Or(later.user, earlier.user), cmp.Or(later.name, earlier.name), cmp.Or(later.logical, earlier.logical)
	later.alloc, later.parent = cmp.Or(later.alloc, earlier.alloc), cmp.Or(later.parent, earlier.parent)
	if later.after == nil {
		later.after = earlier.after
	}
	later.enabled = was.enabled
	o.collections[id] = later
}

// Where collection_events and instance_events have the same.
const classColumn2019, missingColumn2019, kindColumn2019, priorityColumn2019 = 3, 4, 5, 6

// eventOf reads what rows of collections and of instances have alike.
func (o *Google2019) eventOf(r *rows, timeUs, event, id int) event2019 {
	e := event2019{atUs: r.whole(timeUs, 0, math.MaxInt64), id: task2011ID{job: r.whole(id, 1, maxID2011)}, what: int8(r.oneOf(event, eventNames2019))}
	if e.what < 0 {
		r.fail(event, "it is empty; want one of %s, or its number", strings.Join(eventNames2019, ", "))
	}
	e.isSet = r.oneOf(kindColumn2019, kindNames2019) == 1
	// Absent is zero, as in all messages of Google's.
	e.said.class = int8(max(r.oneOf(classColumn2019, classNames2019), 0))
	priority, _ := r.maybeWhole(priorityColumn2019, 0, maxPriority2019)
	e.said.priority = int16(priority)
	e.said.cpu, e.said.mem = -1, -1
	return e
}

func (o *Google2019) notMissing(table string, missing int64) {
	if missing > 0 {
		o.note("rows of " + table + " that Google made up, as it had missed something (" + missingNames2019[missing] + ")")
	}
}

// idOf is a number that is in a list.
func (r *rows) idOf(column int, text string) int64 {
	was := r.fields[column]
	defer func() { r.fields[column] = was }()
	r.fields[column] = text
	return r.whole(column, 0, maxID2011)
}

// readInstanceEvents reads instance_events.
func (o *Google2019) readInstanceEvents(r *rows) error {
	for o.replay.lenient(r).next() {
		e, missing := o.instanceEvent(r)
		if r.err != nil || e.atUs > o.replay.readUntilUs() {
			continue
		}
		o.notMissing("instance_events", missing)
		r.keep(&o.replay.kept, 2*keptItemBytes)
		o.keep(e)
	}
	return r.err
}

// readLater reads instance_events once more, for what tasks ask for that say so
// only after what is replayed.
func (o *Google2019) readLater(r *rows) error {
	r.skip = func(*Error) bool { return true }
	for r.next() {
		e, _ := o.instanceEvent(r)
		if r.err != nil || e.atUs <= o.replay.readUntilUs() {
			continue
		}
		if t := o.replay.tasks[e.id]; t != nil && !t.known() {
			r.keep(&o.replay.kept, 2*keptItemBytes)
			e.seq = int32(len(o.later))
			o.later = append(o.later, e)
		}
	}
	return r.err
}

func (o *Google2019) instanceEvent(r *rows) (e event2019, missing int64) {
	const timeUs, event, id, alloc, index, machine, allocIndex, cpu, mem, constraint = 0, 1, 2, 7, 8, 9, 10, 11, 12, 13
	e = o.eventOf(r, timeUs, event, id)
	e.id.index = int32(r.whole(index, 0, maxIndex2011))
	t := &e.said
	t.alloc, _ = r.maybeWhole(alloc, 0, maxID2011)
	within, hasIndex := r.maybeWhole(allocIndex, -1, maxIndex2011)
	if !hasIndex {
		within = -1
	}
	t.allocIndex = int32(within)
	t.machine, _ = r.maybeWhole(machine, -1, maxID2011)
	if share, ok := r.maybeShare(cpu, maxShare2011); ok {
		t.cpu = share
	}
	if share, ok := r.maybeShare(mem, maxShare2011); ok {
		t.mem = share
	}
	missing = r.oneOf(missingColumn2019, missingNames2019)
	t.constraints = o.constraints(r, constraint)
	return e, missing
}

type constraint2019 struct {
	Name     string `json:"name"`
	Value    string `json:"value"`
	Relation loose  `json:"relation"`
}

// constraints reads those of a row.
func (o *Google2019) constraints(r *rows, column int) []*borgpb.Constraint {
	text := r.fields[column]
	if shared, ok := o.shared[text]; ok {
		return shared
	}
	var all []*borgpb.Constraint
	for _, c := range list[constraint2019](r, column) {
		relation := max(int(r.enumOf(column, string(c.Relation), relationNames2019)), 0)
		k := &borgpb.Constraint{Key: c.Name, Value: c.Value, Relation: borgpb.Relation(relation + 1)}
		switch {
		case len(k.Key) == 0 || len(k.Key) > maxKeyBytes || len(k.Value) > maxValueBytes || strings.ContainsRune(k.Key+k.Value, 0):
			r.fail(column, "a constraint on %s: want a name of 1 to %d bytes and a value of at most %d", brief(k.Key), maxKeyBytes, maxValueBytes)
		case relation >= 2 && relation <= 5 && !isInteger(k.Value):
			o.note("constraints left out (once for each set of them), as they compare with what is no whole number")
		case len(all) == maxConstraints2011:
			r.fail(column, "more than %d constraints", maxConstraints2011)
		default:
			all = append(all, k)
		}
	}
	if r.err == nil {
		r.keep(&o.replay.kept, keptTextBytes*int64(len(all)))
		o.shared[o.replay.kept.text(text)] = all
	}
	return all
}

// enumOf is oneOf of a text in a list.
func (r *rows) enumOf(column int, text string, names []string) int64 {
	was := r.fields[column]
	defer func() { r.fields[column] = was }()
	r.fields[column] = text
	return r.oneOf(column, names)
}

// keep holds a row until all are there.
func (o *Google2019) keep(e event2019) {
	e.seq = int32(len(o.events))
	o.events = append(o.events, e)
}

// collection is what is known of one; of one that collection_events does not have
// nothing is.
func (o *Google2019) collection(id int64) *collection2019 {
	c := o.collections[id]
	if c == nil {
		c = &collection2019{}
		o.collections[id] = c
	}
	return c
}

// Cell is the cell at the moment.
func (o *Google2019) Cell() (*Cell, error) {
	if o.live != nil {
		o.play()
	}
	for id, of := range o.attributes {
		m := o.replay.machine(id)
		m.attributes = make(map[string]string)
		for _, key := range sortedKeys(of) {
			switch a := of[key]; {
			case a.deleted:
			case len(m.attributes) == maxAttributes:
				o.note("attributes of machines beyond 60 of one machine")
			default:
				m.attributes[key] = a.value
			}
		}
	}
	o.jobs.prepare()
	c, err := o.replay.Cell()
	if err != nil {
		return nil, err
	}
	o.sets.add(c)
	o.jobs.link(c)
	if c.Notes == nil {
		c.Notes = make(map[string]int)
	}
	maps.Copy(c.Notes, o.notes)
	return c, nil
}

// table2019 is a table of the trace.
type table2019 struct {
	name string
	// must is how many of the columns have to be there; needed, whether the table has.
	must    int
	needed  bool
	columns []string
	read    func(*Google2019, *rows) error
}

var tables2019 = []table2019{
	{"names", 3, false, []string{"id", "kind", "name"}, (*Google2019).readNames},
	{"machine_events", 3, true, []string{"time", "machine_id", "type", "switch_id", "capacity.cpus", "capacity.memory", "platform_id", "missing_data_reason"}, (*Google2019).readMachineEvents},
	{"machine_attributes", 3, false, []string{"time", "machine_id", "name", "value", "deleted"}, (*Google2019).readMachineAttributes},
	{"collection_events", 3, true, []string{
		"time", "type", "collection_id", "scheduling_class", "missing_type", "collection_type", "priority", "alloc_collection_id", "user", "collection_name",
		"collection_logical_name", "parent_collection_id", "start_after_collection_ids", "max_per_machine", "max_per_switch", "vertical_scaling", "scheduler",
	}, (*Google2019).readCollectionEvents},
	{"instance_events", 3, true, []string{
		"time", "type", "collection_id", "scheduling_class", "missing_type", "collection_type", "priority", "alloc_collection_id", "instance_index", "machine_id",
		"alloc_instance_index", "resource_request.cpus", "resource_request.memory", "constraint",
	}, (*Google2019).readInstanceEvents},
}

// Read reads a file, whose name says of which table it is and in what form:
// instance_events.json.
func (o *Google2019) Read(file string, in io.Reader) error {
	t, ok := tableOf(filepath.Base(file))
	f := formOf(file)
	if !ok || f == "" {
		return fmt.Errorf("%s is none of the tables of Google's trace of 2019", file)
	}
	o.replay.kept.from(in)
	return t.read(o, records(file, f, in, t.must, t.columns))
}

// tableOf is the table that a file or folder is of, or a part of.
func tableOf(name string) (table2019, bool) {
	for _, t := range tables2019 {
		if rest, ok := strings.CutPrefix(name, t.name); ok && (rest == "" || strings.ContainsRune(".-_", rune(rest[0]))) {
			return t, true
		}
	}
	return table2019{}, false
}

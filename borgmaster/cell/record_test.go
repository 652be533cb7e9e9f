package cell

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"unsafe"

	"borg/proto/borgpb"
)

// richCell is a cell with a bit of everything: where a random walk led.
func richCell(t testing.TB, ops int) *Cell {
	g := generator{testLog: newTestLog(t), r: rand.New(rand.NewPCG(3, 42)), even: true}
	for i := range ops {
		g.cellNs += second / 10
		g.wallNs += second / 10
		op := g.next()
		if i == 0 {
			op = marshal(t, &borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
		}
		e := &borgpb.Entry{CellTimeNs: g.cellNs, WallTimeNs: g.wallNs, Ops: [][]byte{op}}
		g.c.Apply(g.c.Index()+1, 1, marshal(t, e))
	}
	// The walk may have ended without a secret.
	for n := 0; n < 1000 && len(g.c.secrets.list) == 0; n++ {
		e := &borgpb.Entry{CellTimeNs: g.cellNs, WallTimeNs: g.wallNs, Ops: [][]byte{marshal(t, g.secretOp())}}
		g.c.Apply(g.c.Index()+1, 1, marshal(t, e))
	}
	g.anyState("zed")
	// Or without a daemon job. That user is not bounded, and priority 0 is free.
	spec := service(0, 0, 0, 0)
	spec.Kind = borgpb.JobKind_JOB_KIND_DAEMON
	g.apply(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{
		User: "zed", Name: "agent", Labels: map[string]string{"tier": "web", "team": "ads"}, Spec: marshal(t, spec)}}})
	return g.c
}

// derivedFields are those that follow from others, by type: they are computed
// anew by Load and verified by Check. Every other field of a record must be in
// its encoding.
var derivedFields = map[string][]string{
	"Cell": {"restored", "outage", "jobs", "jobsByUID", "stopUse", "stopCopies", "mayWait", "sets", "setList", "setsByU", "machines", "machineList", "jobRefs", "endings.queue", "endings.byKey",
		"records", "readings", "build", "diverged", "counts", "leaveDueNs", "heldPortsDueNs", "setsBehind", "drains", "drainDueNs", "updateDues", "asked", "holders", "daemons", "crons", "unseated", "now", "submitting", "head", "graveyard.queue", "graveyard.objects", "graveyard.tasks", "graveyard.byUser", "graveyard.crowded",
		"requests.byID", "requests.queue", "requests.room", "requests.of", "requests.marks", "requests.most", "users.byName", "users.list", "users.admins", "users.adminChanges", "tokens.byHash", "tokens.list",
		// The key in use has a record of its own.
		"secrets.byKey", "secrets.list", "secrets.bytes", "secrets.keyID", "bans.list", "bans.dueWallNs",
		"quotas.byKey", "quotas.list", "quotas.policy", "quotas.used", "quotas.capacity", "taskBounds.byUser", "taskBounds.list", "stateBudgets.byUser", "stateBudgets.list", "stateUse",
		// So has the number of changes.
		"files.byKey", "files.list", "files.of", "files.bytes", "files.changes",
		// So has the policy of labels.
		"labelPolicy", "visibility", "quarantined", "quarantinedBy", "quarantineDueNs",
		// So has that of preemption.
		"preemption",
		"savers", "saversOf", "saveDueNs", "volumes.list", "volumes.dues", "volumes.of", "volumes.charged"},
	"Machine":  {"yielding", "held", "gone", "room.taken", "room.discount", "room.capacity.Ports", "room.devices", "room.parts", "copies", "allocs", "ports", "domains", "named", "changes", "volumes"},
	"AllocSet": {"spec", "weight", "need", "allocs", "counts", "domains", "limits", "gone", "behind"},
	"Alloc":    {"set", "room", "copies", "machine", "lostOn"}, // the last two: TestAllocPlaceCounts
	"Job": {"specs", "waiting", "pending", "running", "dead", "finished", "started", "backoff", "stopping", "retrying", "update", "domains",
		"settled", "touched", "diesAfter", "lastEdge", "changedAt", "gone", "leaveDueNs", "updateDueNs", "charged", "chargedKept", "daemon", "cron", "ended", "own"},
	"Volume":      {"of", "name", "machine", "gone", "dueNs", "yields", "kept", "charged"},
	"Spec":        {"uses", "gone"},
	"Task":        {"job", "past", "cur.stop"},
	"Copy":        {"next", "stopCharged"},
	"Update":      {"down", "cursor", "chosen", "watched", "askedNs"},
	"seat":        {"job", "index"},
	"cron":        {"job"},
	"request":     {"gone", "next"},
	"User":        {"gone"},
	"token":       {"gone"},
	"Secret":      {"user", "name", "gone"},
	"Ban":         {"gone"},
	"Quota":       {"gone", "user", "band"},
	"TaskBounds":  {"gone", "user"},
	"stateBudget": {"gone", "user"}, "requestMark": {"gone", "user"},
	"quotaPolicy": {},

	"preemptionPolicy": {},
	"cellKey":          {},
	"File":             {"user", "name", "gone"},
	"labelPolicy":      {"of"},
	"visibility":       {"groups"},
	"fileChanges":      {},
	"restored":         {},
	"outage":           {},
	"dependents":       {"gone"},
}

// TestEveryFieldCounts changes each field of each kind of record, one at a
// time, and wants the record, and so the digest, to change.
func TestEveryFieldCounts(t *testing.T) {
	seen := make(map[string]int)
	missing := func() (names []string) {
		for name := range derivedFields {
			if seen[name] == 0 {
				names = append(names, name)
			}
		}
		return names
	}
	// Where one walk ends there may be none of a kind.
	for ops := 4000; ops <= 9000 && len(missing()) > 0; ops += 500 {
		everyFieldCounts(t, richCell(t, ops), seen)
	}
	for _, name := range missing() {
		t.Errorf("no cell holds a %s", name)
	}
}

// everyFieldCounts changes what it has seen less than 20 of.
func everyFieldCounts(t *testing.T, c *Cell, seen map[string]int) {
	c.restored.fromIndex, c.outage.untilNs, c.quotas.policy.enforce = c.index, 1, true
	c.preemption.collapse = 4
	// Or nobody has set it.
	c.secrets.keyID.id = cmp.Or(c.secrets.keyID.id, "k1")
	if len(c.bans.list) == 0 {
		// Their time may be over where the walk ended.
		c.bans.add(&Ban{name: "tool"})
	}
	if len(c.endings.queue) == 0 {
		c.endings.add(&dependents{key: JobKey{"u", "j"}, seq: 1})
	}
	if len(c.requests.marks) == 0 {
		c.requests.marks = append(c.requests.marks, &requestMark{user: "u", wallNs: 1})
	}
	for _, r := range slices.Collect(c.objects()) {
		if !r.exists() {
			continue
		}
		name, v := reflect.TypeOf(r).Elem().Name(), reflect.ValueOf(r).Elem()
		if h, ok := r.(*headMark); ok {
			name, v = "Cell", reflect.ValueOf(h.cell).Elem()
		}
		if seen[name]++; seen[name] > 20 {
			continue
		}
		changeFields(t, r, name, "", v)
	}
}

// changeFields walks the fields of a struct.
func changeFields(t *testing.T, r record, kind, prefix string, v reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		path := prefix + f.Name
		if f.Name == "mark" || slices.Contains(derivedFields[kind], path) {
			continue
		}
		if a, ok := r.(*Alloc); ok && path == "behind" && a.moves {
			// Who has to move is behind in any case, and is written as that.
			continue
		}
		fv := reflect.NewAt(f.Type, unsafe.Pointer(v.Field(i).UnsafeAddr())).Elem()
		if f.Type.Kind() == reflect.Struct {
			changeFields(t, r, kind, path+".", fv)
			continue
		}
		before := encoded(r)
		// change1 unbinds a copy from its spec, to change what it holds.
		var spec *Spec
		p, isCopy := r.(*Copy)
		if isCopy {
			spec = p.spec
		}
		old := reflect.New(f.Type).Elem()
		old.Set(fv)
		if !change1(r, fv) {
			t.Fatalf("%s.%s: the test does not know how to change a %v", kind, path, f.Type)
		}
		if after := encoded(r); bytes.Equal(before, after) {
			t.Errorf("%s.%s: changed from %v, and the record is the same", kind, path, old)
		}
		fv.Set(old)
		if isCopy {
			p.spec = spec
		}
		if !bytes.Equal(before, encoded(r)) {
			t.Fatalf("%s.%s: not restored", kind, path)
		}
	}
}

// encoded is what the digest sees of a record.
func encoded(r record) []byte {
	h := new(recordHasher).of(r.appendKey(nil), r.appendValue(nil))
	if !r.exists() {
		return nil
	}
	return h[:]
}

// change1 gives a field another value.
func change1(r record, v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(v.Uint() ^ 1)
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Array:
		if last := v.Index(v.Len() - 1); last.CanInt() {
			last.SetInt(last.Int() + 1)
			return true
		}
		v.Index(0).SetUint(v.Index(0).Uint() ^ 1)
	case reflect.Map:
		m := reflect.MakeMap(v.Type())
		m.SetMapIndex(reflect.ValueOf("new"), reflect.ValueOf("x"))
		v.Set(m)
	case reflect.Slice:
		v.Set(reflect.Append(slicesClone(v), reflect.New(v.Type().Elem()).Elem()))
	case reflect.Pointer:
		return changePointer(r, v)
	default:
		return false
	}
	return true
}

func slicesClone(v reflect.Value) reflect.Value {
	return reflect.AppendSlice(reflect.MakeSlice(v.Type(), 0, v.Len()+1), v)
}

// changePointer points a field at something else of its type.
func changePointer(r record, v reflect.Value) bool {
	switch v.Interface().(type) {
	case *Machine:
		v.Set(reflect.ValueOf(&Machine{name: "elsewhere"}))
	case *Alloc:
		v.Set(reflect.ValueOf(&Alloc{set: &AllocSet{uid: UID{9, 9, 9}}, index: 77}))
	case *Job:
		v.Set(reflect.ValueOf(&Job{uid: UID{9, 9, 9}, rows: []*Task{{}}}))
	case *Spec:
		if v.IsNil() {
			v.Set(reflect.ValueOf(&Spec{}))
		} else {
			v.SetZero()
		}
	case *reading:
		// All else of it follows from the bytes.
		v.Set(reflect.ValueOf(&reading{Bytes: []byte("something else")}))
	case *Resources:
		// What a bound copy holds follows from its spec.
		if p, ok := r.(*Copy); ok && p.spec != nil {
			p.spec = nil
		}
		v.Set(reflect.ValueOf(&Resources{CPUMilli: 12345}))
	case *note:
		v.Set(reflect.ValueOf(&note{text: "something else"}))
	case *Exit:
		v.Set(reflect.ValueOf(&Exit{Code: 99}))
	case *borgpb.Refusal:
		v.Set(reflect.ValueOf(&borgpb.Refusal{Kind: borgpb.RefusalKind_REFUSAL_KIND_LIMIT, Message: "other"}))
	case *borgpb.Visibility:
		v.Set(reflect.ValueOf(&borgpb.Visibility{Groups: []*borgpb.ShareGroup{{Name: "other", Users: []string{"zed"}}}}))
	case *borgpb.LabelPolicy:
		v.Set(reflect.ValueOf(&borgpb.LabelPolicy{Rules: []*borgpb.LabelRule{{Key: "other"}}}))
	case *stopping:
		v.Set(reflect.ValueOf(&stopping{index: 12345}))
	case *rareCopy:
		v.Set(reflect.ValueOf(&rareCopy{devices: []DeviceGrant{{"tpu", 7, 1000}}}))
	case *given:
		v.Set(reflect.ValueOf(&given{labels: map[string]string{"given": "before"}}))
	case *drain:
		v.Set(reflect.ValueOf(&drain{reason: "something else"}))
	case *rareTask:
		v.Set(reflect.ValueOf(&rareTask{disrupted: []int64{12345}}))
	case *uses:
		v.Set(reflect.ValueOf(&uses{of: TaskID{JobKey{"u", "j"}, 7}, names: []string{"data"}}))
	case *TaskID:
		v.Set(reflect.ValueOf(&TaskID{JobKey{"u", "p"}, 7}))
	case *saving:
		v.Set(reflect.ValueOf(&saving{untilNs: 12345}))
	case *quarantine:
		v.Set(reflect.ValueOf(&quarantine{untilNs: 12345}))
	case *reservation:
		v.Set(reflect.ValueOf(&reservation{cpuMilli: 12345}))
	case *waiting:
		v.Set(reflect.ValueOf(&waiting{victims: []*Copy{{job: &Job{}}}}))
	case *Copy:
		if v.IsNil() {
			v.Set(reflect.ValueOf(&Copy{machine: &Machine{}, res: &Resources{}}))
		} else {
			v.SetZero()
		}
	default:
		return false
	}
	return true
}

// TestNestedFieldsCount does the same for what records point at.
func TestNestedFieldsCount(t *testing.T) {
	j := &Job{uid: UID{1, 2, 3}, key: JobKey{"u", "j"}}
	p := &Copy{
		job: j, machine: &Machine{name: "m"}, state: attemptStopping, res: &Resources{Devices: []Device{{"gpu", 1}}},
		exit: &Exit{}, stop: &stopping{},
	}
	p.few = &rareCopy{devices: []DeviceGrant{{"gpu", 0, 1}}, note: &note{text: "well"}, quarantine: &quarantine{}}
	p.estimate = &reservation{}
	victim := &Copy{job: &Job{uid: UID{4, 5, 6}}, machine: p.machine, res: p.res, stop: &stopping{}}
	p.wait = &waiting{victims: []*Copy{victim}}
	skip := []string{"promised", "room", "res", "discount", "charged"}
	for name, target := range map[string]any{
		"res": p.res, "few": p.few, "note": p.few.note, "quarantine": p.few.quarantine, "estimate": p.estimate, "exit": p.exit, "stop": p.stop, "wait": p.wait, "job.uid": &p.job.uid, "victim.uid": &victim.job.uid,
	} {
		v := reflect.ValueOf(target).Elem()
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if slices.Contains(skip, f.Name) {
				continue
			}
			fv := reflect.NewAt(f.Type, unsafe.Pointer(v.Field(i).UnsafeAddr())).Elem()
			old := reflect.New(f.Type).Elem()
			old.Set(fv)
			before := encoded(p)
			switch f.Name {
			case "victims":
				p.wait.victims = append([]*Copy{victim}, victim)
			case "Devices":
				p.res.Devices = []Device{{"gpu", 2}}
			default:
				if !change1(p, fv) {
					t.Fatalf("%s.%s: the test does not know how to change a %v", name, f.Name, f.Type)
				}
			}
			if bytes.Equal(before, encoded(p)) {
				t.Errorf("%s.%s: changed, and the record is the same", name, f.Name)
			}
			fv.Set(old)
		}
	}
}

// TestSavingFieldsCount does it for what a job saves.
func TestSavingFieldsCount(t *testing.T) {
	j := &Job{saving: &saving{set: JobKey{"u", "s"}}}
	v := reflect.ValueOf(j.saving).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		before := encoded(j)
		if f.Name == "set" {
			j.saving.set = JobKey{"u", "t"}
		} else if !change1(j, reflect.NewAt(f.Type, unsafe.Pointer(v.Field(i).UnsafeAddr())).Elem()) {
			t.Fatalf("saving.%s: the test does not know how to change a %v", f.Name, f.Type)
		}
		if bytes.Equal(before, encoded(j)) {
			t.Errorf("saving.%s: changed, and the record is the same", f.Name)
		}
	}
}

// TestDrainFieldsCount does it for how a machine is being emptied.
func TestDrainFieldsCount(t *testing.T) {
	m := &Machine{name: "m", draining: true, drain: &drain{}}
	v := reflect.ValueOf(m.drain).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		before := encoded(m)
		if !change1(m, reflect.NewAt(f.Type, unsafe.Pointer(v.Field(i).UnsafeAddr())).Elem()) {
			t.Fatalf("drain.%s: the test does not know how to change a %v", f.Name, f.Type)
		}
		if bytes.Equal(before, encoded(m)) {
			t.Errorf("drain.%s: changed, and the record is the same", f.Name)
		}
	}
}

// TestAllocPlaceCounts wants all places of an alloc told apart; it is on one
// machine, lost on one, or nowhere.
func TestAllocPlaceCounts(t *testing.T) {
	m1, m2 := &Machine{name: "m1"}, &Machine{name: "m2"}
	seen := make(map[string]string)
	for what, a := range map[string]*Alloc{
		"nowhere": {}, "on m1": {machine: m1}, "on m2": {machine: m2}, "lost on m1": {lostOn: m1}, "lost on m2": {lostOn: m2},
	} {
		a.set, a.attempt = &AllocSet{allocs: []*Alloc{a}}, 1
		e := string(encoded(a))
		if other, ok := seen[e]; ok {
			t.Errorf("an alloc %s is written as one %s", what, other)
		}
		seen[e] = what
	}
}

// TestLoadRefuses damages what was written down, in every way that a byte can
// be wrong, and wants an error or a cell that is sound, never a panic.
// BORG_DAMAGE (600) times, from seed BORG_DAMAGE_SEED (1).
func TestLoadRefuses(t *testing.T) {
	c := richCell(t, 800)
	type kv struct{ k, v []byte }
	var records []kv
	for k, v := range c.Records() {
		records = append(records, kv{bytes.Clone(k), bytes.Clone(v)})
	}
	load := func(list []kv) (*Cell, error) {
		return Load(func(yield func(k, v []byte) bool) {
			for _, r := range list {
				if !yield(r.k, r.v) {
					return
				}
			}
		})
	}
	if n, err := load(records); err != nil || n.Digest() != c.Digest() {
		t.Fatalf("undamaged: %v", err)
	}
	r := newRand(uint64(envInt(t, "BORG_DAMAGE_SEED", 1)))
	refused := 0
	for n := range envInt(t, "BORG_DAMAGE", 600) {
		list := slices.Clone(records)
		i := r.IntN(len(list))
		what := ""
		switch n % 5 {
		case 0:
			list = slices.Delete(list, i, i+1)
			what = "left out"
		case 1:
			list[i].v = list[i].v[:r.IntN(len(list[i].v))]
			what = "cut short"
		case 2:
			list[i].v = append(bytes.Clone(list[i].v), 0)
			what = "with a byte more"
		case 3:
			list = slices.Insert(list, i, list[i])
			what = "twice"
		default:
			v := bytes.Clone(list[i].v)
			v[r.IntN(len(v))] ^= 1 << r.IntN(8)
			list[i].v = v
			what = "with a bit changed"
		}
		n, err := load(list)
		if err != nil {
			refused++
			continue
		}
		if what == "cut short" && records[i].k[0] == kindRequest {
			// What was added to it in format 2 may be missing.
			continue
		}
		// What is written only when there is something to say may be missing at the end:
		// then it is a record that a cell would write.
		asWritten := func() bool {
			for k, v := range n.Records() {
				if bytes.Equal(k, list[i].k) {
					return bytes.Equal(v, list[i].v)
				}
			}
			return false
		}
		if what == "cut short" && !asWritten() || what == "with a byte more" || what == "twice" {
			t.Errorf("record %x %s was taken", records[i].k, what)
		}
		if n.Digest() == c.Digest() {
			t.Errorf("record %x %s: the digest is the same", records[i].k, what)
		}
		liveOn(t, n, r)
	}
	t.Logf("%d refused, the others have other digests", refused)
}

// liveOn applies random ops to a cell that was loaded from damaged records: as
// it was taken, it must be sound.
func liveOn(t *testing.T, c *Cell, r *rand.Rand) {
	g := generator{testLog: &testLog{t: t, c: c, term: c.Term(), cellNs: c.TimeNs(), wallNs: c.WallNs()}, r: r}
	for range 40 {
		g.cellNs += second
		g.wallNs += second
		e := &borgpb.Entry{CellTimeNs: g.cellNs, WallTimeNs: g.wallNs, Ops: [][]byte{g.next()}}
		c.Apply(c.Index()+1, g.term, marshal(t, e))
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
}

// TestGuard turns a panic in a check into a refusal that is the same
// everywhere.
func TestGuard(t *testing.T) {
	r := guarded(func() *borgpb.Refusal { panic("oh") })
	if r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_INTERNAL {
		t.Errorf("got %v", r)
	}
}

// TestDiverged wants a cell to notice that the elected master has another
// digest for an index that it remembers.
func TestDiverged(t *testing.T) {
	l := newTestLog(t)
	for l.c.Index() < 2*digestEvery {
		l.c.Apply(l.c.Index()+1, 1, nil)
	}
	d, ok := l.c.DigestAt(digestEvery)
	if !ok {
		t.Fatalf("no digest at %d", digestEvery)
	}
	logDigest := func(d Digest) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_Digest{Digest: &borgpb.LogDigest{Index: digestEvery, Digest: d[:]}}}
	}
	l.do(logDigest(d))
	if err := l.c.Diverged(); err != nil {
		t.Fatal(err)
	}
	d[3] ^= 1
	l.do(logDigest(d))
	if l.c.Diverged() == nil {
		t.Error("another digest was not noticed")
	}
}

// TestFlush wants Flush to write just what changed, and nothing twice.
func TestFlush(t *testing.T) {
	l := newTestLog(t)
	l.do(addMachine("m1", 1000, 1<<30))
	l.do(submitJob(t, "web", service(1000, 200, 1, 1)))
	keys := func() (out []string) {
		n := l.c.Dirty()
		l.c.Flush(func(k, v []byte) { out = append(out, fmt.Sprintf("%x", k[:1])) })
		if n != len(out) {
			t.Errorf("Dirty is %d, Flush wrote %d", n, len(out))
		}
		slices.Sort(out)
		return out
	}
	// Head, machine, job and spec: a task that was never placed has no record.
	if got, want := keys(), []string{"10", "20", "40", "41"}; !slices.Equal(got, want) {
		t.Errorf("first flush %v, want %v", got, want)
	}
	if got := keys(); len(got) != 0 {
		t.Errorf("second flush %v", got)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{
		{Uid: l.c.Job(JobKey{"u", "web"}).UID().String(), Index: 7, Machine: "m1"},
	}}}})
	if got, want := keys(), []string{"10", "40", "42"}; !slices.Equal(got, want) {
		t.Errorf("flush after an assignment %v, want %v", got, want)
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: "web"}}})
	if got, want := keys(), []string{"10", "40", "42", "43"}; !slices.Equal(got, want) {
		t.Errorf("flush after kill %v, want %v", got, want)
	}
}

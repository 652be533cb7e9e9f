package scheduler_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// randomMachine draws a machine with few different values, so that tests pass
// and fail often.
func randomMachine(t *rapid.T) *borgpb.MachineSpec {
	spec := machineSpec(
		rapid.Int64Range(1, 8).Draw(t, "cpu")*1000,
		rapid.Int64Range(1, 16).Draw(t, "gib")<<30,
	)
	spec.Capacity.DiskBytes = rapid.Int64Range(0, 3).Draw(t, "disk") << 30
	for _, key := range []string{"rack", "power", "arch", "gen"} {
		if rapid.Bool().Draw(t, key) {
			spec.Attributes[key] = rapid.SampledFrom([]string{"1", "2", "x"}).Draw(t, key+" value")
		}
	}
	if rapid.Bool().Draw(t, "has packages") {
		spec.Packages = &borgpb.MachinePackages{Digests: testDigests(rapid.SampledFrom([][]string{{"d1"}, {"d2"}, {"d1", "d2"}}).Draw(t, "packages"))}
	}
	if rapid.IntRange(0, 4).Draw(t, "taint") == 0 {
		spec.Taints = []*borgpb.Taint{randomTaint(t)}
	}
	spec.PortLast = spec.PortFirst + uint32(rapid.IntRange(0, 5).Draw(t, "ports"))
	if rapid.Bool().Draw(t, "gpu") {
		spec.Capacity.Devices = map[string]int64{"gpu": rapid.Int64Range(1, 4).Draw(t, "gpus")}
	}
	if rapid.Bool().Draw(t, "own cpus") {
		threads := rapid.SampledFrom([]int64{1, 2}).Draw(t, "threads")
		if spec.Capacity.Devices == nil {
			spec.Capacity.Devices = map[string]int64{}
		}
		spec.Capacity.Devices[borgpb.ExclusiveCPU] = threads * rapid.Int64Range(1, 4).Draw(t, "own cores")
		spec.Attributes[borgpb.CoreThreads] = fmt.Sprint(threads)
	}
	return spec
}

func randomTaint(t *rapid.T) *borgpb.Taint {
	taint := &borgpb.Taint{
		Key: rapid.SampledFrom([]string{"dedicated", "old"}).Draw(t, "taint"), Value: rapid.SampledFrom([]string{"", "db"}).Draw(t, "taint value"),
	}
	switch rapid.IntRange(0, 2).Draw(t, "effect") {
	case 0:
		taint.Evict = true
	case 1:
		taint.PreferNot = true
	}
	return taint
}

func randomJob(t *rapid.T) *borgpb.JobSpec {
	spec := service(
		uint32(rapid.IntRange(1, 6).Draw(t, "tasks")),
		rapid.SampledFrom([]int32{0, 50, 110, 200, 370}).Draw(t, "priority"),
		rapid.Int64Range(0, 12).Draw(t, "cpu")*500,
		rapid.Int64Range(0, 20).Draw(t, "gib")<<30,
	)
	if rapid.Bool().Draw(t, "batch") {
		spec.Kind = borgpb.JobKind_JOB_KIND_BATCH
		spec.MaxFailures = uint32(rapid.IntRange(0, 4).Draw(t, "failures"))
		spec.BatchQueue = rapid.IntRange(0, 3).Draw(t, "queued") == 0
	}
	spec.Task.Resources.DiskBytes = rapid.Int64Range(0, 2).Draw(t, "disk") << 30
	switch rapid.IntRange(0, 5).Draw(t, "gpu") {
	case 0:
		spec.Task.Resources.Devices = map[string]int64{"gpu": rapid.Int64Range(1, 4).Draw(t, "gpus")}
	case 1, 2:
		spec.Task.Resources.DeviceMilli = map[string]int64{"gpu": rapid.Int64Range(1, 9).Draw(t, "tenths of a gpu") * 100}
	}
	if rapid.IntRange(0, 5).Draw(t, "exclusive") == 0 && spec.Kind == borgpb.JobKind_JOB_KIND_SERVICE {
		spec.Task.ExclusiveCores = true
		spec.Task.Resources.CpuMilli = 1000 * rapid.Int64Range(1, 4).Draw(t, "own cpu")
	}
	for range rapid.IntRange(0, 2).Draw(t, "constraints") {
		if rapid.IntRange(0, 4).Draw(t, "by name") == 0 {
			spec.Task.Constraints = append(spec.Task.Constraints, &borgpb.Constraint{
				Key: cell.NameAttribute, Value: fmt.Sprintf("m%d", rapid.IntRange(0, 8).Draw(t, "named")),
				Relation: rapid.SampledFrom([]borgpb.Relation{borgpb.Relation_RELATION_NOT_EQUAL, borgpb.Relation_RELATION_EQUAL}).Draw(t, "or not"),
			})
			continue
		}
		spec.Task.Constraints = append(spec.Task.Constraints, &borgpb.Constraint{
			Key:      rapid.SampledFrom([]string{"rack", "power", "arch", "gen"}).Draw(t, "key"),
			Relation: borgpb.Relation(rapid.IntRange(1, 8).Draw(t, "relation")),
			Value:    rapid.SampledFrom([]string{"1", "2"}).Draw(t, "value"),
			Soft:     rapid.IntRange(0, 3).Draw(t, "soft") == 0,
		})
	}
	if rapid.Bool().Draw(t, "tolerates") {
		spec.Task.Tolerations = []*borgpb.Toleration{{
			Key: "dedicated", Value: rapid.SampledFrom([]string{"", "db"}).Draw(t, "toleration"),
			ForgivenessNs: rapid.SampledFrom([]int64{0, 0, 3e6}).Draw(t, "forgiveness"),
		}}
	}
	if rapid.IntRange(0, 3).Draw(t, "packages") == 0 {
		spec.Task.Packages = []*borgpb.Package{{Name: "p", Digest: testDigest("d1"), Path: "/p"}, {Name: "q", Digest: testDigest("d2"), Path: "/q"}}
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "ports") {
		spec.Task.Ports = append(spec.Task.Ports, fmt.Sprintf("p%d", i))
	}
	switch rapid.IntRange(0, 7).Draw(t, "limit") {
	case 0:
		spec.MaxPerMachine = 1
	case 1:
		spec.MaxPerRack = uint32(rapid.IntRange(1, 2).Draw(t, "per rack"))
	case 2:
		spec.MaxPerPower = 1
	case 3:
		spec.Gang = true
	case 4:
		spec.MaxPer = map[string]uint32{"gen": uint32(rapid.IntRange(1, 2).Draw(t, "per gen"))}
		spec.Gang = rapid.IntRange(0, 3).Draw(t, "gang too") == 0
	case 5:
		spec.MaxPer = map[string]uint32{"gen": 2, "arch": 1, "nobody has it": 1}
		spec.MaxPerRack = uint32(rapid.IntRange(0, 2).Draw(t, "per rack too"))
	}
	if rapid.IntRange(0, 4).Draw(t, "in set") == 0 {
		spec.AllocSet = "ann/set"
		spec.AllocByIndex = rapid.IntRange(0, 2).Draw(t, "by index") == 0
		spec.Task.ExclusiveCores = false
	} else {
		spec.Task.Volumes = randomVolumes(t)
	}
	return spec
}

// randomWorld draws a cell in which some things have found places.
func randomWorld(t *rapid.T, tb testing.TB, cfg scheduler.Config) *world {
	w := newWorld(tb, cfg)
	for i := range rapid.IntRange(0, 20).Draw(t, "machines") {
		name := fmt.Sprintf("m%d", i)
		w.must(tb, addMachine(name, randomMachine(t)))
		switch rapid.IntRange(0, 7).Draw(t, "state") {
		case 0:
			w.must(tb, machineOp("drain", options{name: name}))
		case 1:
			w.must(tb, machineOp("down", options{name: name}))
		}
	}
	var kept []*borgpb.Volume
	if rapid.Bool().Draw(t, "set volumes") {
		kept = []*borgpb.Volume{{Name: "data", DiskBytes: 1 << 30, KeepNs: 1e9}}
	}
	set, err := proto.Marshal(&borgpb.AllocSetSpec{
		Volumes: kept,
		Allocs:  3, Priority: 200, MaxPerRack: uint32(rapid.IntRange(0, 1).Draw(t, "set per rack")), MaxPer: rapid.SampledFrom([]map[string]uint32{nil, {"gen": 1}}).Draw(t, "set per gen"),
		Resources: &borgpb.Resources{CpuMilli: 2000, MemBytes: 4 << 30, Devices: map[string]int64{"gpu": int64(rapid.IntRange(0, 1).Draw(t, "set gpus"))}},
	})
	if err != nil {
		tb.Fatal(err)
	}
	if rapid.Bool().Draw(t, "set") {
		w.must(tb, asUser("ann", &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: "ann", Name: "set", Spec: set}}}))
	}
	for i := range rapid.IntRange(1, 5).Draw(t, "jobs") {
		// Without the set a job that names it is refused.
		w.do(submitJob("ann", fmt.Sprintf("j%d", i), randomJob(t)))
	}
	return w
}

// pending lists the tasks of a cell that wait, eligible or not.
func pending(c *cell.Cell) []cell.TaskID {
	var ids []cell.TaskID
	for j := range c.Jobs() {
		for i, task := range j.Tasks() {
			if task.State() == borgpb.State_STATE_PENDING {
				ids = append(ids, cell.TaskID{Job: j.Key(), Index: i})
			}
		}
	}
	return ids
}

// TestExplainAddsUp checks on random cells, with promises in flight, that the
// reasons of every pending task add up to the machines of the cell, that a
// place is found whenever one is said to fit, that the probe agrees with the
// cell, and that each change that is offered fits as many machines as it says.
func TestExplainAddsUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := randomWorld(rt, t, scheduler.Config{Seed: rapid.Uint64().Draw(rt, "seed")})
		w.settleAll(t)
		for _, id := range pending(w.cell) {
			checkWhy(rt, w, id)
		}
		for a := range w.copy.PendingAllocs() {
			key := a.Set().Key()
			if err := scheduler.ProbeDiffers(w.s, w.copy, key, a.Index()); err != nil {
				rt.Fatal(err)
			}
			why, err := w.s.Explain(w.copy, key, a.Index())
			if err != nil {
				rt.Fatal(err)
			}
			if fits := addUp(rt, w, a.Name(), why); fits > 0 {
				rt.Fatalf("%s waits although it fits %d machines", a.Name(), fits)
			}
		}
		// Something more arrives and is promised, but not yet done.
		w.do(submitJob("bob", "late", randomJob(rt)))
		w.catchUp()
		w.s.Pass(w.copy)
		for _, id := range pending(w.cell) {
			if err := scheduler.ProbeDiffers(w.s, w.copy, id.Job, id.Index); err != nil {
				rt.Fatal(err)
			}
		}
		if err := w.cell.Check(); err != nil {
			rt.Fatal(err)
		}
	})
}

func checkWhy(rt *rapid.T, w *world, id cell.TaskID) {
	if err := scheduler.ProbeDiffers(w.s, w.copy, id.Job, id.Index); err != nil {
		rt.Fatal(err)
	}
	why, err := w.s.Explain(w.copy, id.Job, id.Index)
	if err != nil {
		rt.Fatal(err)
	}
	fits := addUp(rt, w, id.String(), why)
	j := w.copy.Job(id.Job)
	if fits > 0 && !j.Spec().GetGang() && !w.copy.Queued(j) {
		rt.Fatalf("%s waits although it fits %d machines: %s", id, fits, why.Summary)
	}
	limited := j.Limits().Any()
	site := w.copy.VolumeSiteOf(j, nil, id.Index)
	if limited || site.Bound || len(site.Not) > 0 {
		// What the job has already counts, and a new job would have nothing.
		return
	}
	for _, ch := range why.Changes {
		spec := ch.Changed(j.Spec())
		spec.Gang = false
		trial := loadWorld(rt, w)
		if r := trial.do(submitJob("zoe", "trial", spec)); r.GetRefusal() != nil {
			rt.Fatalf("%s: change %q: %v", id, ch.Change, r.GetRefusal())
		}
		trial.catchUp()
		got, err := trial.s.Explain(trial.copy, cell.JobKey{User: "zoe", Name: "trial"}, 0)
		if err != nil {
			rt.Fatal(err)
		}
		n := 0
		for _, r := range got.Reasons {
			if r.Test == "fits" {
				n = r.Machines
			}
		}
		if n != ch.Machines || n == 0 {
			rt.Fatalf("%s: change %q fits %d machines and says %d", id, ch.Change, n, ch.Machines)
		}
	}
}

// addUp checks that the reasons count every machine once, and returns how many
// fit.
func addUp(rt *rapid.T, w *world, name string, why *scheduler.Why) (fits int) {
	sum := 0
	for _, r := range why.Reasons {
		sum += r.Machines
		if r.Machines <= 0 || r.Detail == "" {
			rt.Fatalf("%s: empty reason %+v", name, r)
		}
		if r.Test == "fits" {
			fits = r.Machines
		}
	}
	if sum != w.copy.NumMachines() || why.Machines != sum {
		rt.Fatalf("%s: the reasons add up to %d of %d machines: %+v", name, sum, w.copy.NumMachines(), why.Reasons)
	}
	return fits
}

// loadWorld makes another world of the same cell.
func loadWorld(rt *rapid.T, w *world) *world {
	load := func() *cell.Cell {
		c, err := cell.Load(w.cell.Records())
		if err != nil {
			rt.Fatal(err)
		}
		return c
	}
	s, err := scheduler.New(scheduler.Config{})
	if err != nil {
		rt.Fatal(err)
	}
	return &world{cell: load(), copy: load(), s: s, wallNs: w.wallNs, timeNs: w.timeNs}
}

// TestMemoryChangesNothing runs a scheduler through random changes of a cell
// and checks at each step that one that is made anew, over a copy that is loaded
// anew, decides the same, with or without what is there for speed alone.
func TestMemoryChangesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := scheduler.Config{Seed: 7, Enough: rapid.SampledFrom([]int{1, 2, 4, 1 << 20}).Draw(rt, "enough"), BatchCount: 6}
		w := randomWorld(rt, t, cfg)
		for step := range rapid.IntRange(1, 30).Draw(rt, "steps") {
			w.catchUp()
			again, err := cell.Load(w.copy.Records())
			if err != nil {
				rt.Fatal(err)
			}
			plain := cfg
			plain.NoScoreCache = rapid.Bool().Draw(rt, "no score cache")
			plain.NoClasses = rapid.Bool().Draw(rt, "no classes")
			plain.NoHeadroom = rapid.Bool().Draw(rt, "no headroom")
			fresh, err := scheduler.New(plain)
			if err != nil {
				rt.Fatal(err)
			}
			want, got := fresh.Pass(again), w.s.Pass(w.copy)
			if !proto.Equal(got.Assign, want.Assign) {
				rt.Fatalf("step %d: with memory %v, without %v", step, got.Assign, want.Assign)
			}
			if got.ID != 0 {
				w.s.Settle(w.copy, got.ID, w.do(assign(got.Assign)))
			}
			randomChange(rt, w, step)
		}
	})
}

// randomChange does one thing to the cell; it may be refused.
func randomChange(rt *rapid.T, w *world, step int) {
	name := fmt.Sprintf("m%d", rapid.IntRange(0, 8).Draw(rt, "machine"))
	switch rapid.IntRange(0, 13).Draw(rt, "change") {
	case 13:
		randomVolumeChange(rt, w)
	case 11, 12:
		m := w.cell.Machine(name)
		if m == nil {
			return
		}
		for p := range m.Copies() {
			// Mostly less than the limit, now and then more.
			part := rapid.Int64Range(0, 9).Draw(rt, "part")
			r := p.Resources()
			w.do(reserved(p, r.CPUMilli*part/8, r.MemBytes*part/8))
		}
	case 10:
		name, digest, on := rapid.SampledFrom([]string{"p", "q", "r"}).Draw(rt, "package"), rapid.SampledFrom([]string{"", "1"}).Draw(rt, "digest"), ""
		if rapid.Bool().Draw(rt, "on one") {
			on = fmt.Sprintf("m%d", rapid.IntRange(0, 8).Draw(rt, "banned on"))
		}
		if rapid.IntRange(0, 2).Draw(rt, "lift") > 0 {
			w.do(unbanPackage(name, digest, on))
		} else {
			w.do(banPackage(name, digest, on))
		}
	case 7:
		w.do(asUser("ann", &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{
			User: "ann", Name: fmt.Sprintf("j%d", rapid.IntRange(0, 4).Draw(rt, "job")), Tasks: uint32(rapid.IntRange(1, 6).Draw(rt, "tasks")),
		}}}))
	case 8:
		w.do(asUser("ann", &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{
			User: "ann", Name: fmt.Sprintf("j%d", rapid.IntRange(0, 4).Draw(rt, "job")),
		}}}))
	case 0:
		w.do(addMachine(name, randomMachine(rt)))
	case 1:
		verb := rapid.SampledFrom([]string{"drain", "undrain", "down", "up", "remove"}).Draw(rt, "verb")
		w.do(machineOp(verb, options{name: name}))
	case 9:
		set := &borgpb.SetMachine{Name: name, SetTaints: []*borgpb.Taint{randomTaint(rt)}}
		if rapid.Bool().Draw(rt, "clear") {
			set = &borgpb.SetMachine{Name: name, RemoveTaints: []string{"dedicated", "old"}}
		}
		if rapid.Bool().Draw(rt, "packages") {
			change := &borgpb.PackageChange{}
			for _, d := range []string{"d1", "d2"} {
				switch rapid.IntRange(0, 2).Draw(rt, d) {
				case 0:
					change.Add = append(change.Add, testDigest(d))
				case 1:
					change.Remove = append(change.Remove, testDigest(d))
				}
			}
			set = &borgpb.SetMachine{Name: name, Packages: change}
		}
		w.do(asUser("admin", &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: set}}))
	case 2:
		w.do(machineOp("set", options{name: name, words: map[string]string{
			rapid.SampledFrom([]string{"rack", "arch", "gen"}).Draw(rt, "attribute"): rapid.SampledFrom([]string{"1", "2"}).Draw(rt, "value"),
		}}))
	case 3:
		w.do(submitJob("ann", fmt.Sprintf("k%d", step), randomJob(rt)))
	default:
		// Copies end: those told to stop, and others.
		for m := range w.cell.Machines() {
			for p := range m.Copies() {
				if rapid.IntRange(0, 2).Draw(rt, "ends") != 0 {
					continue
				}
				state := rapid.SampledFrom([]borgpb.AttemptState{
					borgpb.AttemptState_ATTEMPT_STATE_FINISHED, borgpb.AttemptState_ATTEMPT_STATE_FAILED,
				}).Draw(rt, "end")
				if !p.Current() {
					state = borgpb.AttemptState_ATTEMPT_STATE_STOPPED
				}
				if j := w.cell.JobByUID(p.JobUID()); j != nil {
					w.do(reported(j, p.Index(), m.Name(), p.Attempt(), state))
				}
				return
			}
		}
	}
}

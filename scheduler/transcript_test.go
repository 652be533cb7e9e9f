package scheduler_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// TestTranscripts plays the scenarios in testdata/transcripts: under `play`, one command a
// line:
//
//	cell [enough=N] [batch=N] [name=S]    a new, empty cell and its scheduler
//	    [policy=P] [weights=rack=512,...] [prefer=k=v] [workload=batch:1/2]
//	machine NAME cpu=N mem=SIZE [gpu=N] [own-cpus=N] [attr=k=v,...] [ports=A-B] [taint=k=v] [has=DIGEST,...]
//	has MACHINE DIGEST...                 packages that are there now, besides; dN is a digest
//	set MACHINE k=v,...                   attributes
//	taint MACHINE KEY[=VALUE][:evict|:prefer-not]
//	untaint MACHINE KEY
//	drain|undrain|down|up|remove MACHINE
//	job USER/NAME tasks=N [cpu=N] [mem=SIZE] [gpu=N] [exclusive] [priority=N] [kind=batch]
//	    [ports=a,b] [want=arch=arm,...] [prefer=...] [tolerate=k=v] [gang] [never] [queue]
//	    [packages=name:digest,...] [volumes=name,...]
//	    [per-machine=N] [per-rack=N] [allocs=USER/NAME [by-index]] [max-running=N] [after=JOB]
//	allocs USER/NAME n=N [cpu=N] [mem=SIZE] [ports=N] [priority=N] [gang]
//	kill|kill-allocs USER/NAME
//	resize USER/NAME n=N
//	finish|fail TASK                      its borglet says that it ended well, or not
//	reserve TASK cpu=N mem=SIZE           the master estimates that it will use so much
//	catch-up                              the copy takes in the log
//	pass                                  one pass; what it decided
//	send                                  the oldest batch goes into the log
//	lose                                  the oldest batch gets no answer
//	settle                                pass and send until nothing is decided
//	wait s=SECONDS                        cell time passes
//	where USER/NAME                       tasks by machine
//	domains USER/NAME KEY                 tasks by an attribute of their machines
//	running USER/NAME                     how many tasks run
//	why TASK
//	start USER/NAME                       borglets say that its tasks run
//	stopped                               and that all has ended that was told to
//	plan                                  what the rescheduler would move
//	move                                  the plan goes into the log
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		var tr transcript
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return tr.run(t, d)
		})
	})
}

// transcript is a world and what is on its way in it.
type transcript struct {
	*world
	batches []scheduler.Batch
	plan    *borgpb.MoveTasks
}

func (tr *transcript) run(t *testing.T, d *datadriven.TestData) string {
	var out strings.Builder
	if d.Cmd != "play" {
		t.Fatalf("%s: the only command is play; what it plays follows on lines of its own", d.Pos)
	}
	for line := range strings.Lines(d.Input) {
		if words := strings.Fields(line); len(words) > 0 {
			out.WriteString(tr.command(t, words))
		}
	}
	return out.String()
}

// options are the words of a command: the first, and key=value of the rest.
type options struct {
	t     *testing.T
	name  string
	words map[string]string
}

func parse(t *testing.T, words []string) options {
	o := options{t: t, words: make(map[string]string)}
	for i, w := range words {
		k, v, _ := strings.Cut(w, "=")
		if i == 0 && v == "" {
			o.name = w
			continue
		}
		o.words[k] = v
	}
	return o
}

func (o options) number(key string, def int64) int64 {
	s, ok := o.words[key]
	if !ok {
		return def
	}
	shift := 0
	switch {
	case strings.HasSuffix(s, "G"):
		shift = 30
	case strings.HasSuffix(s, "M"):
		shift = 20
	}
	n, err := strconv.ParseInt(strings.TrimRight(s, "GM"), 10, 64)
	if err != nil {
		o.t.Fatalf("%s=%s: %v", key, s, err)
	}
	return n << shift
}

func (o options) milli(key string) int64 {
	whole, frac, _ := strings.Cut(o.words[key], ".")
	if whole == "" {
		return 0
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		o.t.Fatalf("%s: %v", key, err)
	}
	f, _ := strconv.ParseInt((frac + "000")[:3], 10, 64)
	return n*1000 + f
}

func (o options) list(key string) []string {
	if o.words[key] == "" {
		return nil
	}
	return strings.Split(o.words[key], ",")
}

func (o options) has(key string) bool {
	_, ok := o.words[key]
	return ok
}

func (o options) resources() *borgpb.Resources {
	r := &borgpb.Resources{
		CpuMilli: o.milli("cpu"), MemBytes: o.number("mem", 0), DiskBytes: o.number("disk", 0),
	}
	if n := o.milli("gpu"); n >= 1000 {
		r.Devices = map[string]int64{"gpu": n / 1000}
	} else if n > 0 {
		r.DeviceMilli = map[string]int64{"gpu": n}
	}
	return r
}

func constraints(words []string, soft bool) []*borgpb.Constraint {
	var ks []*borgpb.Constraint
	for _, w := range words {
		k := &borgpb.Constraint{Soft: soft}
		for _, rel := range []struct {
			sign string
			rel  borgpb.Relation
		}{
			{"!=", borgpb.Relation_RELATION_NOT_EQUAL},
			{">=", borgpb.Relation_RELATION_GREATER_THAN_EQUAL},
			{"=", borgpb.Relation_RELATION_EQUAL},
		} {
			if key, value, ok := strings.Cut(w, rel.sign); ok {
				k.Key, k.Value, k.Relation = key, value, rel.rel
				break
			}
		}
		if k.GetKey() == "" {
			k.Key, k.Relation = w, borgpb.Relation_RELATION_PRESENT
		}
		ks = append(ks, k)
	}
	return ks
}

func (o options) jobSpec() *borgpb.JobSpec {
	spec := service(uint32(o.number("tasks", 1)), int32(o.number("priority", 200)), 0, 0)
	spec.Task.Resources = o.resources()
	spec.Task.Ports = o.list("ports")
	spec.Task.Constraints = append(constraints(o.list("want"), false), constraints(o.list("prefer"), true)...)
	for _, w := range o.list("tolerate") {
		k, v, _ := strings.Cut(w, "=")
		spec.Task.Tolerations = append(spec.Task.Tolerations, &borgpb.Toleration{Key: k, Value: v})
	}
	for _, w := range o.list("packages") {
		name, digest, _ := strings.Cut(w, ":")
		spec.Task.Packages = append(spec.Task.Packages, &borgpb.Package{Name: name, Digest: testDigest(digest), Path: "/" + name})
	}
	spec.Task.ExclusiveCores = o.has("exclusive")
	for _, name := range o.list("volumes") {
		spec.Task.Volumes = append(spec.Task.Volumes, &borgpb.Volume{Name: name, Path: "/" + name, DiskBytes: 1 << 30})
	}
	if o.words["kind"] == "batch" {
		spec.Kind = borgpb.JobKind_JOB_KIND_BATCH
		spec.MaxFailures = uint32(o.number("failures", 0))
	}
	spec.Gang, spec.BatchQueue = o.has("gang"), o.has("queue")
	if o.has("never") {
		spec.Preempt = borgpb.Preempt_PREEMPT_NEVER
	}
	spec.MaxPerMachine = uint32(o.number("per-machine", 0))
	spec.MaxPerRack = uint32(o.number("per-rack", 0))
	spec.MaxPer = o.maxPer()
	spec.MaxRunning = uint32(o.number("max-running", 0))
	spec.AllocSet, spec.AllocByIndex = o.words["allocs"], o.has("by-index")
	spec.StartAfter = o.list("after")
	spec.Scheduler = o.words["scheduler"]
	return spec
}

// maxPer reads per=KEY:N,...
func (o options) maxPer() map[string]uint32 {
	most := make(map[string]uint32)
	for _, w := range o.list("per") {
		k, v, _ := strings.Cut(w, ":")
		n, err := strconv.Atoi(v)
		if err != nil {
			o.t.Fatal(err)
		}
		most[k] = uint32(n)
	}
	return most
}

// config is that of the command "cell".
func (o options) config() scheduler.Config {
	cfg := scheduler.Config{
		Seed: 1, Enough: int(o.number("enough", 0)), BatchCount: int(o.number("batch", 0)), Name: o.words["name"],
		Weights: scheduler.DefaultWeights(),
	}
	must := func(err error) {
		if err != nil {
			o.t.Fatal(err)
		}
	}
	var ok bool
	if cfg.Policy, ok = scheduler.ParsePolicy(o.words["policy"]); !ok {
		o.t.Fatalf("there is no policy %q", o.words["policy"])
	}
	for _, w := range o.list("weights") {
		must(cfg.Weights.Set(w))
	}
	var err error
	if o.has("prefer") {
		cfg.Prefer, err = scheduler.ParseAttribute(o.words["prefer"])
		must(err)
	}
	cfg.Workload, err = scheduler.ParseWorkload(strings.Replace(o.words["workload"], ":", " ", 1))
	must(err)
	return cfg
}

func (o options) machineSpec() *borgpb.MachineSpec {
	spec := machineSpec(o.milli("cpu"), o.number("mem", 0), o.list("attr")...)
	spec.Capacity.Devices = o.resources().Devices
	if n := o.number("own-cpus", 0); n > 0 {
		spec.Capacity.Devices = map[string]int64{borgpb.ExclusiveCPU: n}
	}
	if a, b, ok := strings.Cut(o.words["ports"], "-"); ok {
		first, _ := strconv.Atoi(a)
		last, _ := strconv.Atoi(b)
		spec.PortFirst, spec.PortLast = uint32(first), uint32(last)
	}
	if has := o.list("has"); has != nil {
		spec.Packages = &borgpb.MachinePackages{Digests: testDigests(has)}
	}
	for _, w := range o.list("taint") {
		spec.Taints = append(spec.Taints, readTaint(w))
	}
	return spec
}

func (tr *transcript) command(t *testing.T, words []string) string {
	o := parse(t, words[1:])
	user, name, _ := strings.Cut(o.name, "/")
	key := cell.JobKey{User: user, Name: name}
	switch words[0] {
	case "cell":
		cfg := o.config()
		cfg.Reschedule, cfg.Moves = o.reschedule(), int(o.number("moves", 0))
		tr.world = newWorld(t, cfg)
		tr.batches, tr.plan = nil, nil
		return ""
	case "machine":
		return refusalText(tr.do(addMachine(o.name, o.machineSpec())))
	case "taint", "untaint":
		set := &borgpb.SetMachine{Name: o.name}
		if words[0] == "untaint" {
			set.RemoveTaints = words[2:]
		} else {
			set.SetTaints = []*borgpb.Taint{readTaint(words[2])}
		}
		return refusalText(tr.do(asUser("admin", &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: set}})))
	case "has":
		return refusalText(tr.do(hasPackages(o.name, testDigests(words[2:])...)))
	case "ban":
		return refusalText(tr.do(banPackage(o.name, o.words["digest"], o.words["on"])))
	case "unban":
		return refusalText(tr.do(unbanPackage(o.name, o.words["digest"], o.words["on"])))
	case "set", "drain", "undrain", "down", "up", "remove":
		return refusalText(tr.do(machineOp(words[0], o)))
	case "job":
		return refusalText(tr.do(submitJob(user, name, o.jobSpec())))
	case "allocs":
		spec := &borgpb.AllocSetSpec{
			Allocs: uint32(o.number("n", 1)), Priority: int32(o.number("priority", 200)), Resources: o.resources(),
			MaxPerMachine: uint32(o.number("per-machine", 0)), Gang: o.has("gang"), MaxPer: o.maxPer(),
		}
		spec.Resources.Ports = o.number("ports", 0)
		data, err := proto.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		return refusalText(tr.do(asUser(user, &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: user, Name: name, Spec: data}}})))
	case "kill":
		return refusalText(tr.do(asUser(user, &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: name}}})))
	case "resize":
		return refusalText(tr.do(asUser(user, &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: user, Name: name, Tasks: uint32(o.number("n", 1))}}})))
	case "kill-allocs":
		return refusalText(tr.do(asUser(user, &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: user, Name: name}}})))
	case "finish":
		return tr.finish(t, o.name, borgpb.AttemptState_ATTEMPT_STATE_FINISHED)
	case "fail":
		return tr.finish(t, o.name, borgpb.AttemptState_ATTEMPT_STATE_FAILED)
	case "reserve":
		id, err := cell.ParseTaskID(o.name)
		if err != nil {
			t.Fatal(err)
		}
		r := o.resources()
		return refusalText(tr.do(reserved(tr.cell.Job(id.Job).Task(id.Index).Current(), r.CpuMilli, r.MemBytes)))
	case "catch-up":
		tr.catchUp()
		return ""
	case "pass":
		return tr.pass()
	case "send", "lose":
		return tr.answer(t, words[0] == "lose")
	case "wait":
		tr.timeNs += o.number("s", 0) * 1e9
		tr.wallNs += o.number("s", 0) * 1e9
		return refusalText(tr.do(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}}))
	case "settle":
		return fmt.Sprintf("%d placed\n", tr.settleAll(t))
	case "where":
		return countsText(onMachines(tr.cell, key)) + "\n"
	case "domains":
		at := make(map[string]int)
		for name, n := range onMachines(tr.cell, key) {
			domain, _ := tr.cell.Machine(name).Attribute(words[2])
			at[domain] += n
		}
		return countsText(at) + "\n"
	case "running":
		_, running, _ := tr.cell.Job(key).Counts()
		return fmt.Sprintf("%d run\n", running)
	case "why":
		return tr.why(t, o.name)
	case "start":
		tr.start(key)
		return ""
	case "stopped":
		tr.endStopping()
		return ""
	case "plan":
		tr.plan = tr.s.Plan(tr.copy)
		return tr.planText()
	case "move":
		r := tr.do(moveTasks(tr.plan))
		tr.s.SettlePlan(tr.copy, r)
		return refusalText(r)
	}
	t.Fatalf("unknown command %q", words[0])
	return ""
}

// readTaint reads KEY[=VALUE][:evict|:prefer-not].
func readTaint(text string) *borgpb.Taint {
	text, effect, _ := strings.Cut(text, ":")
	k, v, _ := strings.Cut(text, "=")
	return &borgpb.Taint{Key: k, Value: v, Evict: effect == "evict", PreferNot: effect == "prefer-not"}
}

func machineOp(verb string, o options) *borgpb.Op {
	op := &borgpb.Op{}
	switch verb {
	case "set":
		set := &borgpb.SetMachine{Name: o.name, SetAttributes: o.words}
		op.Op = &borgpb.Op_SetMachine{SetMachine: set}
	case "drain", "undrain":
		op.Op = &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: o.name, Drain: verb == "drain"}}
	case "down":
		op.Op = &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: o.name, Term: 1}}
	case "up":
		op.Op = &borgpb.Op_MachineUp{MachineUp: &borgpb.MachineUp{Name: o.name}}
	case "remove":
		op.Op = &borgpb.Op_RemoveMachine{RemoveMachine: &borgpb.RemoveMachine{Name: o.name, Force: true}}
	}
	return asUser("admin", op)
}

func refusalText(r *borgpb.Result) string {
	if f := r.GetRefusal(); f != nil {
		return fmt.Sprintf("refused: %s: %s: %s\n", f.GetKind(), f.GetObject(), f.GetMessage())
	}
	return ""
}

func (tr *transcript) finish(t *testing.T, task string, state borgpb.AttemptState) string {
	id, err := cell.ParseTaskID(task)
	if err != nil {
		t.Fatal(err)
	}
	j := tr.cell.Job(id.Job)
	var p *cell.Copy
	if p = j.Task(id.Index).Current(); p == nil {
		for past := range j.Task(id.Index).Past() {
			if past.Live() {
				p = past
			}
		}
	}
	if p == nil {
		return "it has no copy\n"
	}
	if !p.Current() {
		state = borgpb.AttemptState_ATTEMPT_STATE_STOPPED
	}
	return refusalText(tr.do(reported(j, id.Index, p.Machine().Name(), p.Attempt(), state)))
}

// pass makes one pass and prints the batch, which waits for send or lose.
func (tr *transcript) pass() string {
	b := tr.s.Pass(tr.copy)
	var out strings.Builder
	for _, a := range b.Assign.GetAssignments() {
		out.WriteString(tr.assignmentText(a) + "\n")
	}
	if out.Len() == 0 {
		out.WriteString("nothing\n")
	} else {
		tr.batches = append(tr.batches, b)
	}
	if b.More {
		out.WriteString("and more\n")
	}
	for _, uid := range b.Assign.GetEnable() {
		out.WriteString(tr.named(uid) + " leaves the queue\n")
	}
	return out.String()
}

func (tr *transcript) assignmentText(a *borgpb.Assignment) string {
	parts := []string{fmt.Sprintf("%s/%d -> %s%s", tr.named(a.GetUid()), a.GetIndex(), a.GetMachine(), a.GetAlloc())}
	if len(a.GetPorts()) > 0 {
		parts[0] += fmt.Sprintf(" ports %v", a.GetPorts())
	}
	for _, g := range a.GetDevices() {
		parts[0] += fmt.Sprintf(" %s %v", g.GetName(), g.GetNumbers())
	}
	for _, v := range a.GetVictims() {
		parts = append(parts, fmt.Sprintf("%s/%d gives way", tr.named(v.GetJobUid()), v.GetIndex()))
	}
	return strings.Join(parts, ", ")
}

// named is the key of a job or alloc set.
func (tr *transcript) named(text string) string {
	uid, err := cell.ParseUID(text)
	if err != nil {
		return text
	}
	if j := tr.copy.JobByUID(uid); j != nil {
		return j.Key().String()
	}
	if s := tr.copy.AllocSetByUID(uid); s != nil {
		return s.Key().String()
	}
	return text
}

// answer puts the oldest batch into the log, or loses it.
func (tr *transcript) answer(t *testing.T, lose bool) string {
	if len(tr.batches) == 0 {
		t.Fatal("no batch is on its way")
	}
	b := tr.batches[0]
	tr.batches = tr.batches[1:]
	if lose {
		tr.s.Settle(tr.copy, b.ID, nil)
		return ""
	}
	r := tr.do(assign(b.Assign))
	refused := tr.s.Settle(tr.copy, b.ID, r)
	var out strings.Builder
	out.WriteString(fmt.Sprintf("%d done, %d refused\n", refused.Of-refused.Count, refused.Count))
	for _, f := range r.GetItems() {
		if f.GetKind() != 0 {
			out.WriteString(fmt.Sprintf("  %s: %s: %s\n", f.GetKind(), f.GetObject(), f.GetMessage()))
		}
	}
	return out.String()
}

func (tr *transcript) why(t *testing.T, task string) string {
	id, err := cell.ParseTaskID(task)
	if err != nil {
		t.Fatal(err)
	}
	w, err := tr.s.Explain(tr.copy, id.Job, id.Index)
	if err != nil {
		return err.Error() + "\n"
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n", w.Summary)
	for _, r := range w.Reasons {
		fmt.Fprintf(&out, "  %d %s: %s", r.Machines, r.Test, r.Detail)
		if r.Nearest != "" {
			fmt.Fprintf(&out, " [nearest %s]", r.Nearest)
		}
		out.WriteString("\n")
	}
	for _, c := range w.Changes {
		fmt.Fprintf(&out, "  try %s: %d\n", c.Change, c.Machines)
	}
	if p := w.Placement; p != nil {
		placementText(&out, p)
	}
	fightText(&out, w.Fight)
	return out.String()
}

// placementText writes the parts of the scores that are not zero.
func placementText(out *strings.Builder, p *scheduler.Placement) {
	when := fmt.Sprintf("at index %d", p.Index)
	if p.Index == 0 {
		when = "as things are now"
	}
	fmt.Fprintf(out, "  %s %d of %d had room\n", when, p.Found, p.Looked)
	if p.Fight != nil {
		fightText(out, p.Fight)
		return
	}
	for _, of := range []struct {
		name  string
		score scheduler.Score
	}{{p.Machine, p.Score}, {p.RunnerUp, p.Second}} {
		if of.name == "" {
			continue
		}
		fmt.Fprintf(out, "  %s: %d =", of.name, of.score.Total())
		for _, part := range of.score.Parts() {
			if part.Points != 0 {
				fmt.Fprintf(out, " %s %d", part.Name, part.Points)
			}
		}
		out.WriteString("\n")
	}
}

func fightText(out *strings.Builder, f *scheduler.Fight) {
	if f == nil {
		return
	}
	fmt.Fprintf(out, "  %s (%d) took room on %s at index %d: %s; %d looked at closely\n", f.By, f.Priority, f.Machine, f.Index, f.Cost, f.Looked)
	if f.Otherwise != "" {
		fmt.Fprintf(out, "  on %s: %s\n", f.Otherwise, f.Dearer)
	}
	for _, v := range f.Victims {
		fmt.Fprintf(out, "  gave way: %s (%d)\n", v.Name, v.Priority)
	}
	for _, v := range f.Spared {
		fmt.Fprintf(out, "  stayed: %s (%d): %s\n", v.Name, v.Priority, v.Why)
	}
}

package cell

import (
	"fmt"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"borg/proto/borgpb"
)

const (
	tib = int64(1) << 40

	batch      = borgpb.Band_BAND_BATCH
	production = borgpb.Band_BAND_PRODUCTION
)

// quotaLog is a cell of machines with 100 TiB and 1,000 cores in all, in which quotas
// are enforced.
func quotaLog(t testing.TB) *testLog {
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: FormatQuotas}}})
	for i := range 10 {
		l.do(addMachine(fmt.Sprintf("m%d", i), 100_000, 10*tib))
	}
	l.do(enforce(true))
	return l
}

func enforce(on bool) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: &on}}}
}

func setQuota(user string, band borgpb.Band, cpuMilli, memBytes int64) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: &borgpb.SetQuota{
		User: user, Band: band, Limit: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: memBytes}}}}
}

func updateJob(t testing.TB, name string, spec *borgpb.JobSpec) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "u", Name: name, Spec: marshal(t, spec)}}}
}

func resizeJob(name string, tasks uint32) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: "u", Name: name, Tasks: tasks}}}
}

func killJob(name string) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: name}}}
}

// short wants an op refused for lack of quota, with all of these words.
func (l *testLog) short(op *borgpb.Op, words ...string) {
	l.t.Helper()
	res, _ := l.apply(op)
	r := res[0].Refusal
	if r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_QUOTA {
		l.t.Fatalf("%v, want it refused for lack of quota", res[0])
	}
	for _, w := range words {
		if !strings.Contains(r.Message, w) {
			l.t.Errorf("%q says nothing of %q", r.Message, w)
		}
	}
}

// malformed wants an op refused for a field, with these words.
func (l *testLog) malformed(op *borgpb.Op, field, words string) {
	l.t.Helper()
	res, _ := l.apply(op)
	if r := res[0].Refusal; r.GetField() != field || !strings.Contains(r.GetMessage(), words) {
		l.t.Errorf("%v, want it refused for %s with the words %q", res[0], field, words)
	}
}

// admitAll has the cell admit whatever a user asks for, wherever a walk has led it.
func (l *testLog) admitAll(user string) {
	l.apply(enforce(false))
	l.apply(&borgpb.Op{Op: &borgpb.Op_SetLabelPolicy{SetLabelPolicy: &borgpb.SetLabelPolicy{Policy: &borgpb.LabelPolicy{}}}})
	// Refused if there are no bounds.
	l.apply(&borgpb.Op{Op: &borgpb.Op_SetTaskLimits{SetTaskLimits: &borgpb.SetTaskLimits{User: user}}})
	l.anyState(user)
}

// anyState gives a user the default budgets of the replicated state.
func (l *testLog) anyState(user string) {
	var none []*borgpb.StateAmount
	for _, m := range Measures {
		none = append(none, &borgpb.StateAmount{Measure: m})
	}
	for _, whose := range []string{user, ""} {
		l.apply(&borgpb.Op{Op: &borgpb.Op_SetStateBudget{SetStateBudget: &borgpb.SetStateBudget{User: whose, Amounts: none}}})
	}
}

// fine wants the state to hold, and to be read back as it is.
func (l *testLog) fine() {
	l.t.Helper()
	if err := l.c.Check(); err != nil {
		l.t.Fatal(err)
	}
	l.c = reload(l.t, l.c)
}

func TestScenario10QuotaIsRefusedAtSubmit(t *testing.T) {
	l := quotaLog(t)
	l.do(setQuota("u", production, 0, 20*tib))
	l.do(submitJob(t, "first", service(15, 200, 0, tib)))
	l.short(submitJob(t, "second", service(6, 200, 0, tib)),
		"1TiB of memory is missing: 20TiB granted, 15TiB used, 6TiB more asked for", "u/first (15TiB)", "borgcfg quota set u production --mem 21TiB")
	if l.c.Job(JobKey{"u", "second"}) != nil {
		t.Error("the job that was refused is in the cell")
	}
	for j := range l.c.Pending() {
		if j.Key().Name != "first" {
			t.Errorf("%v pends", j.Key())
		}
	}
	l.do(submitJob(t, "second", service(5, 200, 0, tib)))
	l.fine()
	// Of what was not granted nobody has anything, nor of another band.
	l.short(submitJob(t, "third", service(1, 200, 1, 0)), "of cpu is missing: 0 granted, 0 used, 0.001 more")
	l.short(submitJob(t, "third", service(1, 110, 0, 1)), "user u has no quota for batch", "borgcfg quota set u batch --mem 1;")
	// What ends is given back.
	l.do(killJob("first"))
	l.do(submitJob(t, "third", service(15, 200, 0, tib)))
	l.fine()
}

func TestScenario11PriorityZeroIsFree(t *testing.T) {
	l := quotaLog(t)
	l.do(submitJob(t, "huge", service(1_000, 0, 10_000, tib)))
	if pending, _, _ := l.c.Job(JobKey{"u", "huge"}).Counts(); pending != 1_000 {
		t.Errorf("%d tasks pend, want all", pending)
	}
	// Only of priority zero: with any other it needs a quota.
	l.short(updateJob(t, "huge", service(1_000, 1, 10_000, tib)), "user u has no quota for free")
	l.fine()
}

func TestScenario12ProductionIsNotSoldBeyondTheCell(t *testing.T) {
	l := quotaLog(t)
	l.do(setQuota("u", production, 0, 60*tib))
	l.short(setQuota("ann", production, 0, 41*tib), "cannot be sold beyond 1000‰ of the cell, which has 100TiB", "others have 60TiB, so at most 40TiB")
	l.short(setQuota("ann", borgpb.Band_BAND_MONITORING, 0, 41*tib), "production and monitoring")
	l.do(setQuota("ann", borgpb.Band_BAND_MONITORING, 0, 40*tib))
	l.do(setQuota("u", batch, 0, 200*tib))
	l.do(setQuota("ann", batch, 0, 100*tib))
	l.short(setQuota("bob", batch, 0, 1), "3000‰")
	// A machine that leaves takes nothing back; but nothing more is granted.
	l.do(&borgpb.Op{Op: &borgpb.Op_RemoveMachine{RemoveMachine: &borgpb.RemoveMachine{Name: "m0"}}})
	l.do(setQuota("u", production, 0, 59*tib))
	l.short(setQuota("u", production, 0, 60*tib), "at most 50TiB can be granted here")
	// Who wants to sell more than there is says so.
	l.do(&borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Oversell: []*borgpb.Oversell{{Band: production, Milli: 2_000}}}}})
	l.do(setQuota("u", production, 0, 140*tib))
	l.fine()
}

func TestScenario13QuotaExpires(t *testing.T) {
	l := quotaLog(t)
	op := setQuota("u", production, 10_000, 0)
	op.GetSetQuota().ExpiresWallNs = l.wallNs + 50*second
	l.do(op)
	uid := l.do(submitJob(t, "web", service(2, 200, 1_000, 0))).Uid
	l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{
		{Uid: uid, Index: 0, Machine: "m0"}, {Uid: uid, Index: 1, Machine: "m1"}}}}})
	l.cellNs, l.wallNs = l.cellNs+51*second, l.wallNs+51*second
	l.short(submitJob(t, "late", service(1, 200, 1_000, 0)), "has expired", "borgcfg quota set u production --cpu 3")
	l.short(resizeJob("web", 3), "has expired")
	if _, running, _ := l.c.Job(JobKey{"u", "web"}).Counts(); running != 2 {
		t.Errorf("%d tasks run after the quota expired, want both", running)
	}
	// Less is always right, and who comes back counts as before.
	l.do(&borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: "m1", Term: 1}}})
	l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: uid, Index: 1, LastAttempt: 1, Machine: "m2"}}}}})
	l.do(resizeJob("web", 1))
	l.fine()
}

// TestUpdateChargesTheMostOfOldAndNew: while an update rolls, both specs may run.
func TestUpdateChargesTheMostOfOldAndNew(t *testing.T) {
	l := quotaLog(t)
	l.do(setQuota("u", production, 10_000, 100))
	uid := l.do(submitJob(t, "web", service(2, 200, 4_000, 10))).Uid
	for i := range uint32(2) {
		l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: uid, Index: i, Machine: "m0"}}}}})
	}
	l.short(updateJob(t, "web", service(2, 200, 6_000, 10)), "2 of cpu is missing: 10 granted, 8 used, 4 more asked for")
	l.short(resizeJob("web", 3), "of cpu is missing")
	l.short(updateJob(t, "web", service(2, 400, 4_000, 10)), "no quota for monitoring")
	// Less cpu and more memory, and the args differ: the tasks restart one by one.
	next := service(2, 200, 1_000, 50)
	next.Task.Args = []string{"new"}
	l.do(updateJob(t, "web", next))
	if got := l.c.ChargeOf("u", production); got.CPUMilli != 8_000 || got.MemBytes != 100 {
		t.Errorf("charged %+v while it rolls, want the most of both", got)
	}
	l.short(submitJob(t, "more", service(1, 200, 3_000, 0)), "1 of cpu is missing")
	l.fine()
	// When nothing runs the old one any more, it is charged no more.
	l.do(killJob("web"))
	// What ran it stops, and is charged until it is gone.
	if got := l.c.ChargeOf("u", production); got.CPUMilli != 8_000 || got.MemBytes != 20 {
		t.Errorf("charged %+v for what stops", got)
	}
	l.fine()
}

// TestAllocsAreBoughtOnce: the set is charged, what runs inside is not.
func TestAllocsAreBoughtOnce(t *testing.T) {
	l := quotaLog(t)
	l.do(setQuota("u", production, 10_000, 0))
	set := func(allocs uint32) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: "u", Name: "pool",
			Spec: marshal(t, &borgpb.AllocSetSpec{Allocs: allocs, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 2_000}})}}}
	}
	l.short(set(6), "2 of cpu is missing")
	l.do(set(5))
	inside := service(5, 200, 2_000, tib)
	inside.AllocSet = "u/pool"
	l.do(submitJob(t, "inside", inside))
	l.short(submitJob(t, "outside", service(1, 200, 1, 0)), "u/pool (10)")
	l.fine()
	// It may not leave them for nothing.
	l.short(updateJob(t, "inside", service(5, 200, 2_000, 0)), "of cpu is missing")
	l.do(&borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: "u", Name: "pool"}}})
	l.do(submitJob(t, "outside", service(10, 200, 1_000, 0)))
	l.fine()
}

// TestQuotasAreOffUntilSaid: a grant alone refuses nobody anything.
func TestQuotasAreOffUntilSaid(t *testing.T) {
	l := quotaLog(t)
	l.do(enforce(false))
	l.do(setQuota("u", production, 1_000, 0))
	l.do(submitJob(t, "web", service(5, 200, 1_000, 0)))
	if got := l.c.ChargeOf("u", production); got.CPUMilli != 5_000 {
		t.Errorf("charged %+v, want it to be told although nobody asks", got)
	}
	l.do(enforce(true))
	l.fine()
	// What was admitted stays; only more is refused.
	l.short(resizeJob("web", 6), "5 of cpu is missing: 1 granted, 5 used, 1 more")
	l.do(resizeJob("web", 4))
	l.do(updateJob(t, "web", service(4, 200, 900, 0)))
	l.fine()
	l.do(enforce(false))
	l.do(resizeJob("web", 60))
	l.fine()
}

// TestQuotaTricks: what is absurd is refused, and no sum overflows.
func TestQuotaTricks(t *testing.T) {
	l := quotaLog(t)
	for name, o := range map[string]*borgpb.SetQuota{
		"negative":  {User: "u", Band: production, Limit: &borgpb.Resources{CpuMilli: -1}},
		"too much":  {User: "u", Band: production, Limit: &borgpb.Resources{MemBytes: maxQuotaAmount + 1}},
		"ports":     {User: "u", Band: production, Limit: &borgpb.Resources{Ports: 1}},
		"shares":    {User: "u", Band: production, Limit: &borgpb.Resources{DeviceMilli: map[string]int64{"gpu": 500}}},
		"devices":   {User: "u", Band: production, Limit: &borgpb.Resources{Devices: map[string]int64{"gpu": -1}}},
		"no band":   {User: "u"},
		"odd band":  {User: "u", Band: 77},
		"odd user":  {User: "U", Band: production},
		"past time": {User: "u", Band: production, ExpiresWallNs: 1},
	} {
		res, _ := l.apply(&borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: o}})
		if k := res[0].Refusal.GetKind(); k != borgpb.RefusalKind_REFUSAL_KIND_INVALID && k != borgpb.RefusalKind_REFUSAL_KIND_MALFORMED {
			t.Errorf("%s: %v, want it refused as it is", name, res[0])
		}
	}
	l.do(&borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Oversell: []*borgpb.Oversell{{Band: batch, Milli: maxOversell}}}}})
	l.do(setQuota("u", batch, 0, 1<<50))
	// 100,000 tasks of 1 PiB are more than 64 bits hold; their low bits are few.
	l.short(submitJob(t, "huge", service(maxTasksPerJob, 110, 0, maxMemBytes)), "of memory is missing")
	l.short(submitJob(t, "huge", service(1<<14, 110, 0, maxMemBytes)), "of memory is missing")
	l.do(enforce(false))
	l.do(submitJob(t, "huge", service(maxTasksPerJob, 110, 0, maxMemBytes)))
	l.do(enforce(true))
	l.fine()
	l.short(submitJob(t, "tiny", service(1, 110, 0, 1)), "of memory is missing")
	l.do(killJob("huge"))
	l.do(submitJob(t, "tiny", service(1, 110, 0, 1)))
	l.fine()
}

func TestTaskBounds(t *testing.T) {
	l := quotaLog(t)
	l.do(enforce(false))
	bounds := func(min, otherwise, max int64) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetTaskLimits{SetTaskLimits: &borgpb.SetTaskLimits{User: "u", Min: &borgpb.Resources{CpuMilli: min},
			Default: &borgpb.Resources{CpuMilli: otherwise}, Max: &borgpb.Resources{CpuMilli: max}}}}
	}
	for _, odd := range []*borgpb.Op{bounds(5, 0, 4), bounds(5, 4, 9), bounds(5, 10, 9), bounds(-1, 0, 0), bounds(0, 0, 0)} {
		if res, _ := l.apply(odd); res[0].Refusal == nil {
			t.Errorf("%v is taken", odd)
		}
	}
	l.do(submitJob(t, "old", service(1, 200, 5_000, 0)))
	l.do(bounds(100, 200, 1_000))
	for cpu, ok := range map[int64]bool{0: false, 99: false, 100: true, 1_000: true, 1_001: false} {
		res, _ := l.apply(submitJob(t, fmt.Sprint("j", cpu), service(1, 200, cpu, 0)))
		if k := res[0].Refusal.GetKind(); ok != (res[0].Refusal == nil) || !ok && k != borgpb.RefusalKind_REFUSAL_KIND_LIMIT {
			t.Errorf("%d milli-cores: %v, want it taken: %v", cpu, res[0], ok)
		}
	}
	// Who was there before may be resized, and updated to what is allowed.
	l.do(resizeJob("old", 2))
	if res, _ := l.apply(updateJob(t, "old", service(2, 200, 4_000, 0))); res[0].Refusal == nil {
		t.Error("an update to more than the most is taken")
	}
	l.do(updateJob(t, "old", service(2, 200, 1_000, 0)))
	l.fine()
	l.do(bounds(0, 0, 0))
	l.do(submitJob(t, "wide", service(1, 200, 9_000, 0)))
	l.fine()
}

// TestAdmittedNeverPassesQuota submits, updates, resizes, kills, places and ends at
// random, and adds up itself what is admitted: it rises only within the quota.
func TestAdmittedNeverPassesQuota(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := quotaLog(t)
		bands := map[int32]borgpb.Band{50: borgpb.Band_BAND_FREE, 110: batch, 200: production}
		limit := map[borgpb.Band]int64{}
		before := map[borgpb.Band]int64{}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "job")
			priority := rapid.SampledFrom([]int32{0, 50, 110, 200}).Draw(rt, "priority")
			tasks := uint32(rapid.IntRange(1, 6).Draw(rt, "tasks"))
			spec := service(tasks, priority, int64(rapid.IntRange(0, 9).Draw(rt, "cpu")), 0)
			if rapid.Bool().Draw(rt, "batch") {
				spec.Kind = borgpb.JobKind_JOB_KIND_BATCH
			}
			if rapid.Bool().Draw(rt, "override") {
				spec.Overrides = []*borgpb.TaskOverride{{First: 1, Last: 2, Spec: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: int64(rapid.IntRange(0, 30).Draw(rt, "more"))}}}}
			}
			var op *borgpb.Op
			switch rapid.IntRange(0, 6).Draw(rt, "op") {
			case 0, 1:
				op = submitJob(t, name, spec)
			case 2:
				op = updateJob(t, name, spec)
			case 3:
				op = resizeJob(name, tasks)
			case 4:
				op = killJob(name)
			case 5:
				band := rapid.SampledFrom([]borgpb.Band{borgpb.Band_BAND_FREE, batch, production}).Draw(rt, "band")
				op = setQuota("u", band, int64(rapid.IntRange(0, 60).Draw(rt, "grant")), 0)
				limit[band] = op.GetSetQuota().Limit.CpuMilli
			case 6:
				if op = finishOrPlace(l, name, uint32(rapid.IntRange(0, 5).Draw(rt, "task"))); op == nil {
					continue
				}
			}
			l.apply(op)
			if err := l.c.Check(); err != nil {
				rt.Fatal(err)
			}
			now := admitted(l.c, bands)
			for _, band := range bands {
				if now[band] > before[band] && now[band] > limit[band] {
					rt.Fatalf("%v raised %v from %d to %d, beyond %d", op, band, before[band], now[band], limit[band])
				}
			}
			before = now
		}
		l.c = reload(t, l.c)
	})
}

// admitted adds up, apart from the cell's own books, the most that each task that is
// not dead may ask for, by any spec that it may run.
func admitted(c *Cell, bands map[int32]borgpb.Band) map[borgpb.Band]int64 {
	sum := map[borgpb.Band]int64{}
	for j := range c.Jobs() {
		for i, t := range j.Tasks() {
			most := map[borgpb.Band]int64{}
			for v := range j.Version() {
				s := j.SpecAt(v + 1)
				if s == nil || t.State() == borgpb.State_STATE_DEAD || s.Proto.Priority == 0 {
					continue
				}
				band := bands[s.Proto.Priority]
				most[band] = max(most[band], s.Need(i).Resources.CPUMilli)
			}
			for band, n := range most {
				sum[band] += n
			}
		}
	}
	return sum
}

// finishOrPlace places a task that pends and ends one that runs; nil: there is none.
func finishOrPlace(l *testLog, name string, index uint32) *borgpb.Op {
	j := l.c.Job(JobKey{"u", name})
	if j == nil || j.Task(index) == nil {
		return nil
	}
	t := j.Task(index)
	if p := t.Current(); p != nil {
		return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: p.Machine().Name(),
			Tasks: []*borgpb.TaskReport{{JobUid: j.UID().String(), Index: index, Attempt: t.Attempt(),
				State: int32(attemptFinished), Pid: 7, Exit: &borgpb.Exit{}}}}}}}}
	}
	return &borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{
		{Uid: j.UID().String(), Index: index, LastAttempt: t.Attempt(), Machine: "m1"}}}}}
}

// TestAmounts compares with numbers that have no end.
func TestAmounts(t *testing.T) {
	asBig := func(a amount) *big.Int {
		n := new(big.Int).Lsh(new(big.Int).SetUint64(a.hi), 64)
		return n.Add(n, new(big.Int).SetUint64(a.lo))
	}
	rapid.Check(t, func(rt *rapid.T) {
		draw := func() amount {
			return amountOf(rapid.Int64Range(0, 1<<62).Draw(rt, "n"), uint64(rapid.Uint32().Draw(rt, "times")))
		}
		a, b := draw(), draw()
		if got, want := asBig(a.plus(b)), new(big.Int).Add(asBig(a), asBig(b)); got.Cmp(want) != 0 {
			rt.Errorf("%v + %v = %v", asBig(a), asBig(b), got)
		}
		want := new(big.Int).Sub(asBig(a), asBig(b))
		if want.Sign() < 0 {
			want.SetInt64(0)
		}
		if got := asBig(a.minus(b)); got.Cmp(want) != 0 || (a.compare(b) <= 0) != (want.Sign() == 0) {
			rt.Errorf("%v - %v = %v", asBig(a), asBig(b), got)
		}
		milli := uint64(rapid.IntRange(1, maxOversell).Draw(rt, "milli"))
		want = new(big.Int).Mul(asBig(a), new(big.Int).SetUint64(milli))
		if got := asBig(a.milli(milli)); got.Cmp(want.Div(want, big.NewInt(1000))) != 0 {
			rt.Errorf("%v times %d/1000 = %v, want %v", asBig(a), milli, got, want)
		}
		if got := a.int(); got < 0 || asBig(a).IsInt64() != (asBig(a).Cmp(big.NewInt(got)) == 0) {
			rt.Errorf("%v is shown as %d", asBig(a), got)
		}
	})
}

// TestQuotaAdviceKeepsTheGrant: what a refusal says to type takes the place of the grant,
// so it has the rest of that too, and ends no earlier.
func TestQuotaAdviceKeepsTheGrant(t *testing.T) {
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	on := true
	l.do(&borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: &on}}})
	l.do(addMachine("m1", 100_000, 1<<40))
	l.do(&borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: &borgpb.SetQuota{
		User: "u", Band: borgpb.Band_BAND_PRODUCTION, Limit: &borgpb.Resources{CpuMilli: 1_000, MemBytes: 1 << 30}, ExpiresWallNs: l.wallNs + 90*60*second}}})
	l.short(submitJob(t, "j", service(1, 200, 1_200, 1<<20)), "have an admin raise it: borgcfg quota set u production --cpu 1.2 --mem 1GiB --for 2h")
}

// TestQuotaAdviceIsAccepted: what a refusal says to type is accepted, also in a cell that is
// sold out, where more must be sold first.
func TestQuotaAdviceIsAccepted(t *testing.T) {
	l := quotaLog(t)
	l.do(setQuota("other", production, 999_000, 99*tib))
	job := submitJob(t, "j", service(1, 200, 2_500, 2*tib))
	for _, quota := range []*borgpb.Op{nil, setQuota("u", production, 500, 0)} {
		if quota != nil {
			l.do(quota)
		}
		l.short(job, "The cell is sold out: of the 1000 of cpu that may be granted for production and monitoring, others have 999.",
			"borgcfg quota policy --oversell production=1010; then borgcfg quota set u production --cpu 2.5 --mem 2TiB")
	}
	// No grant makes room for more than the whole cell has, and no policy is advised.
	l.short(submitJob(t, "vast", service(1, 200, 1_000_001, tib)), ". The whole cell is smaller: it has 1000 of cpu, of which 1000 may be granted for production and monitoring; ask for less or add machines")
	grant := setQuota("u", production, 2_500, 2*tib)
	l.short(grant, "cannot be sold")
	sell := func(milli uint32) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Oversell: []*borgpb.Oversell{{Band: production, Milli: milli}}}}}
	}
	l.do(sell(1009))
	l.short(grant, "cannot be sold")
	l.do(sell(1010))
	l.do(grant)
	l.do(job)
	l.fine()
	// What no policy can sell is not advised.
	res, _ := l.apply(submitJob(t, "huge", service(2, 110, 10, tib)))
	if r := res[0].Refusal; r == nil || !strings.Contains(r.Message, "borgcfg quota set u batch") {
		t.Errorf("%v, want the grant advised", res[0])
	}
}

// TestAmountWords: people read units, rounded down.
func TestAmountWords(t *testing.T) {
	mem := item{dim: dimMem}
	for bytes, want := range map[int64]string{0: "0", 1023: "1023", 1024: "1KiB", 1536 << 20: "1.5GiB", 20221211440: "18.83GiB", 60663634320: "56.49GiB", 5 << 40: "5TiB"} {
		if got := mem.words(amountOf(bytes, 1)); got != want {
			t.Errorf("%d bytes: %q, want %q", bytes, got, want)
		}
	}
}

// TestTwoAdminsChangeOneQuota: an op that names amounts changes these alone, so that the
// second of two admins, who read before the first wrote, undoes nothing.
func TestTwoAdminsChangeOneQuota(t *testing.T) {
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	l.do(addMachine("m1", 100_000, 1<<40))
	set := func(limit *borgpb.Resources, expires int64, only ...string) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: &borgpb.SetQuota{User: "u", Band: batch, Limit: limit, ExpiresWallNs: expires, Only: only}}}
	}
	until := l.wallNs + 3600*second
	l.do(set(&borgpb.Resources{CpuMilli: 1_000, MemBytes: 1 << 30}, until))
	l.do(set(&borgpb.Resources{CpuMilli: 5_000}, 0, "cpu"))
	l.do(set(&borgpb.Resources{MemBytes: 2 << 30, DiskBytes: 9}, 0, "mem"))
	q := l.c.QuotaOf("u", batch)
	if want := (Resources{CPUMilli: 5_000, MemBytes: 2 << 30}); !q.limit.Equal(want) || q.expiresWallNs != until {
		t.Errorf("quota %v until %d, want %v until %d", q.limit, q.expiresWallNs, want, until)
	}
	l.malformed(set(nil, 0, "speed"), "only", "no amount of a quota")
	l.malformed(set(nil, 0, "cpu", "cpu"), "only", "named twice")
	l.malformed(set(nil, 0, "device/"), "only", "no amount of a quota")
	l.malformed(set(nil, 0, make([]string, maxNamed+1)...), "only", "at most")
	bounds := func(o *borgpb.SetTaskLimits) *borgpb.Op {
		o.User = "u"
		return &borgpb.Op{Op: &borgpb.Op_SetTaskLimits{SetTaskLimits: o}}
	}
	l.do(bounds(&borgpb.SetTaskLimits{Max: &borgpb.Resources{CpuMilli: 2_000}, Only: []string{"max/cpu"}}))
	l.do(bounds(&borgpb.SetTaskLimits{Min: &borgpb.Resources{MemBytes: 1 << 20}, Only: []string{"min/mem"}}))
	l.do(bounds(&borgpb.SetTaskLimits{Max: &borgpb.Resources{DeviceMilli: map[string]int64{"gpu": 500}}, Only: []string{"max/device/gpu"}}))
	b := l.c.TaskBoundsOf("u")
	if got, want := boundsWords(&b.min, &b.otherwise, &b.max), "at least memory 1MiB, at most cpu 2, gpu 0.5"; got != want {
		t.Errorf("bounds are %q, want %q", got, want)
	}
	l.malformed(bounds(&borgpb.SetTaskLimits{Min: &borgpb.Resources{CpuMilli: 3_000}, Only: []string{"min/cpu"}}), "max", "less of cpu than min wants")
	l.malformed(bounds(&borgpb.SetTaskLimits{Only: []string{"most/cpu"}}), "only", "no amount of min")
	l.fine()
}

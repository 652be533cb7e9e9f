package cell

import (
	"math/rand/v2"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// TestTrialIsApply makes random ops, and asks before each whether it would be done: the
// answer is that of Apply, and asking changes nothing. Repeat with BORG_WALK_SEED.
func TestTrialIsApply(t *testing.T) {
	ops := envInt(t, "BORG_WALK_OPS", 8_000)
	seed := uint64(envInt(t, "BORG_WALK_SEED", 1))
	g := generator{testLog: newTestLog(t), r: rand.New(rand.NewPCG(seed, 77))}
	tried, refused := 0, 0
	for i := range ops {
		data := g.next()
		op := new(borgpb.Op)
		if proto.Unmarshal(data, op) != nil {
			continue
		}
		// What is due by itself happens before the op.
		g.apply()
		before := g.c.Digest()
		said := new(Trial).Check(g.c, op)
		if g.c.Digest() != before {
			t.Fatalf("op %d of seed %d: a trial changed the cell: %v", i, seed, op)
		}
		res, _ := g.apply(op)
		if did := res[0].Refusal; !proto.Equal(said, did) && !(said == nil && did == nil) {
			t.Fatalf("op %d of seed %d: %v\ntrial: %v\napply: %v", i, seed, op, said, did)
		}
		if tried++; said != nil {
			refused++
		}
	}
	if refused < tried/20 || refused > tried*19/20 {
		t.Fatalf("%d of %d ops were refused: the test sees too little", refused, tried)
	}
}

// TestTrialOfSeveral: later ops of a trial see what earlier ones would make, in names,
// quota and budgets; the cell does not.
func TestTrialOfSeveral(t *testing.T) {
	l := budgetLog(t)
	l.do(stateBudgetOp("u", measureTasks, 10))
	wants := func(trial *Trial, op *borgpb.Op, kind borgpb.RefusalKind) {
		t.Helper()
		if r := trial.Check(l.c, op); r.GetKind() != kind {
			t.Fatalf("%v, want %v", r, kind)
		}
	}
	inSet := service(1, 0, 0, 0)
	inSet.AllocSet = "u/set"
	inSet.Task.Resources = &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 20}
	after := service(2, 0, 1, 1)
	after.StartAfter = []string{"u/a"}
	const fine = borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED
	trial := new(Trial)
	wants(trial, submitSetBy(t, "u", "set", 1), fine)
	wants(trial, submitBy(t, "u", "in", inSet), fine)
	wants(trial, submitBy(t, "u", "a", service(5, 0, 1, 1)), fine)
	wants(trial, submitBy(t, "u", "b", after), fine)
	wants(trial, submitBy(t, "u", "a", service(1, 0, 1, 1)), borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS)
	wants(trial, submitBy(t, "u", "c", service(3, 0, 1, 1)), borgpb.RefusalKind_REFUSAL_KIND_LIMIT)
	// Another user has a budget of their own; another trial begins with the cell.
	wants(trial, submitBy(t, "v", "c", service(3, 0, 1, 1)), fine)
	wants(new(Trial), submitBy(t, "u", "in", inSet), borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND)
	wants(new(Trial), submitBy(t, "u", "b", after), borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND)
	wants(new(Trial), submitBy(t, "u", "c", service(3, 0, 1, 1)), fine)
	// What a spec needs a capability for.
	powerful := service(1, 0, 1, 1)
	powerful.Task.Mounts = []*borgpb.Mount{{Source: "/srv", Path: "/srv"}}
	wants(new(Trial), submitBy(t, "u", "p", powerful), borgpb.RefusalKind_REFUSAL_KIND_PERMISSION)
	wants(new(Trial), by("root", submitBy(t, "u", "p", powerful)), fine)
	l.do(addMachine("m1", 1000, 1<<30))
	l.do(&borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: new(true)}}})
	l.do(&borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: &borgpb.SetQuota{User: "v", Band: borgpb.Band_BAND_BATCH, Limit: &borgpb.Resources{CpuMilli: 10, MemBytes: 1000}}}})
	trial = new(Trial)
	wants(trial, submitBy(t, "v", "a", service(6, 100, 1, 1)), fine)
	wants(trial, submitBy(t, "v", "b", service(6, 100, 1, 1)), borgpb.RefusalKind_REFUSAL_KIND_QUOTA)
	wants(new(Trial), submitBy(t, "v", "b", service(6, 100, 1, 1)), fine)
	// Many may ask at the same time.
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for range 50 {
				new(Trial).Check(l.c, submitBy(t, "v", "b", service(6, 100, 1, 1)))
			}
		})
	}
	asking.Wait()
	l.fine()
}

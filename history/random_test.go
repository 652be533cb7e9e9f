package history

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// oracle is a cell that does one thing at a time, as a switch over what there
// is: it makes histories that are linearizable because of how they are made.
type oracle struct {
	r    *rand.Rand
	jobs map[string]*oracleJob
	uids int
}

type oracleJob struct {
	uid     string
	version uint64
	tasks   uint32
	spec    uint64
	mayEnd  bool
	dead    bool
}

// do answers r, and does it.
func (o *oracle) do(r *Record) {
	j := o.jobs[r.Key]
	if j != nil && j.mayEnd && !j.dead && o.r.IntN(8) == 0 {
		j.dead = true
	}
	refused := func(a Answer) { r.Answer = a }
	switch {
	case r.Kind == Submit && j != nil && !j.dead:
		refused(AlreadyExists)
		return
	case r.Kind == Submit && o.r.IntN(50) == 0:
		refused(Refused)
		return
	case r.Kind == Submit:
		o.uids++
		j = &oracleJob{uid: strconv.Itoa(o.uids), version: 1, tasks: r.Tasks, spec: r.Spec, mayEnd: r.MayEnd}
		o.jobs[r.Key] = j
	case j == nil:
		refused(NotFound)
		return
	case r.Kind == Read:
		r.Tasks, r.IsDead = j.tasks, j.dead
	case r.ExpectVersion != 0 && r.ExpectVersion != j.version:
		refused(Conflict)
		return
	case j.dead:
		refused(Dead)
		return
	case r.Kind == Kill:
		j.dead = true
	default:
		if r.Tasks != j.tasks || r.Kind == Update && r.Spec != j.spec {
			j.version++
		}
		j.tasks = r.Tasks
		if r.Kind == Update {
			j.spec, j.mayEnd = r.Spec, j.mayEnd || r.MayEnd
		}
	}
	r.Answer, r.UID, r.Version = OK, j.uid, j.version
}

// generate makes a history of n records by clients that are slow: between call
// and return lies the moment at which the oracle does it, and some never hear
// of it, or hear of a refusal before it is done after all.
func generate(r *rand.Rand, n, clients, keys int) []Record {
	o := &oracle{r: r, jobs: map[string]*oracleJob{}}
	type pending struct {
		atNs int64
		rec  *Record
		late bool
	}
	var todo []pending
	var all []*Record
	freeNs := make([]int64, clients)
	for range n {
		c := r.IntN(clients)
		rec := &Record{Client: c, Key: fmt.Sprintf("u/j%d", r.IntN(keys)), CallNs: freeNs[c] + r.Int64N(1000)}
		took := 1 + r.Int64N(1000)
		if r.IntN(20) == 0 {
			took *= 50
		}
		rec.ReturnNs = rec.CallNs + took
		freeNs[c] = rec.ReturnNs
		rec.Kind = []Kind{Submit, Submit, Kill, Update, Resize, Read, Read, Read}[r.IntN(8)]
		if rec.Kind != Read && rec.Kind != Kill {
			rec.Tasks = uint32(1 + r.IntN(4))
		}
		if rec.Kind == Submit || rec.Kind == Update {
			rec.Spec, rec.MayEnd = uint64(1+r.IntN(3)), r.IntN(3) == 0
		}
		if rec.Kind != Submit && rec.Kind != Read && r.IntN(10) == 0 {
			rec.ExpectVersion = uint64(1 + r.IntN(3))
		}
		all = append(all, rec)
		todo = append(todo, pending{rec.CallNs + r.Int64N(took+1), rec, false})
		if rec.Kind != Read && r.IntN(200) == 0 {
			todo = append(todo, pending{rec.CallNs + r.Int64N(100_000), rec, true})
		}
	}
	slices.SortStableFunc(todo, func(a, b pending) int { return int(a.atNs - b.atNs) })
	for _, p := range todo {
		switch {
		case !p.late && p.rec.Kind != Read && r.IntN(100) == 0:
			// The answer is lost, and perhaps the question.
			if r.IntN(2) == 0 {
				again := *p.rec
				o.do(&again)
			}
		case !p.late:
			o.do(p.rec)
		case p.rec.Answer != OK && p.rec.Answer != Unknown:
			again := *p.rec
			again.Answer = Unknown
			o.do(&again)
			p.rec.Late = true
		}
	}
	var records []Record
	for _, rec := range all {
		records = append(records, *rec)
	}
	return records
}

func number(t *testing.T, name string, otherwise uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// breaks are ways to make a history that no order explains out of one that some
// order does. Each picks from the records at random, and tells whether it found
// any that it can spoil.
var breaks = map[string]func(r *rand.Rand, h []Record) ([]Record, bool){
	"a read shows a version that never was": func(r *rand.Rand, h []Record) ([]Record, bool) {
		return spoil(r, h, func(x *Record) bool { return x.Kind == Read && x.Answer == OK }, func(x *Record) { x.Version += 1000 })
	},
	"a read shows a number of tasks that nobody asked for": func(r *rand.Rand, h []Record) ([]Record, bool) {
		return spoil(r, h, func(x *Record) bool { return x.Kind == Read && x.Answer == OK }, func(x *Record) { x.Tasks += 1000 })
	},
	"a mutation hits a job of another uid": func(r *rand.Rand, h []Record) ([]Record, bool) {
		return spoil(r, h, func(x *Record) bool { return x.Answer == OK && x.Kind != Submit && certain(h, x.Key) }, func(x *Record) { x.UID = "other" })
	},
	"an acknowledged submit is lost": func(r *rand.Rand, h []Record) ([]Record, bool) {
		return after(r, h, func(x, y *Record) bool { return x.Kind == Submit && x.Answer == OK && y.Kind == Read },
			func(_, y *Record) {
				*y = Record{Client: y.Client, Key: y.Key, Kind: Read, CallNs: y.CallNs, ReturnNs: y.ReturnNs, Answer: NotFound}
			})
	},
	"an acknowledged kill is lost": func(r *rand.Rand, h []Record) ([]Record, bool) {
		return after(r, h, func(x, y *Record) bool {
			return x.Kind == Kill && x.Answer == OK && y.Kind == Read && y.Answer == OK && y.IsDead && y.UID == x.UID && certain(h, x.Key)
		}, func(_, y *Record) { y.IsDead = false })
	},
	"an acknowledged change is lost": func(r *rand.Rand, h []Record) ([]Record, bool) {
		return after(r, h, func(x, y *Record) bool {
			return x.Kind != Read && x.Answer == OK && x.Version > 1 && y.Answer == OK && y.UID == x.UID && certain(h, x.Key)
		}, func(x, y *Record) { y.Version = x.Version - 1 })
	},
	"a read shows a job that was replaced": func(r *rand.Rand, h []Record) ([]Record, bool) {
		return after(r, h, func(x, y *Record) bool {
			return x.Kind == Read && x.Answer == OK && y.Kind == Submit && y.Answer == OK && y.UID != x.UID && certain(h, x.Key)
		}, func(x, y *Record) {
			call, ret := y.ReturnNs+1, y.ReturnNs+2
			*y = Record{Client: y.Client, Key: y.Key, Kind: Read, CallNs: call, ReturnNs: ret, Answer: OK, UID: x.UID, Version: x.Version, Tasks: x.Tasks, IsDead: true}
		}, keepSecond)
	},
	"a submit is done twice": func(r *rand.Rand, h []Record) ([]Record, bool) {
		end := int64(0)
		for _, x := range h {
			end = max(end, x.ReturnNs)
		}
		h = slices.Clone(h)
		x := Record{Key: "u/other", Kind: Submit, Answer: OK, Tasks: 1, Spec: 1, Version: 1}
		for i, uid := range []string{"first", "again"} {
			x.UID, x.CallNs, x.ReturnNs = uid, end+int64(2*i+1), end+int64(2*i+2)
			h = append(h, x)
		}
		return h, true
	},
}

// certain tells whether the end of every submit of key is known: one that is not
// could have made nearly any job.
func certain(h []Record, key string) bool {
	return !slices.ContainsFunc(h, func(x Record) bool { return x.Key == key && x.Kind == Submit && (x.Answer == Unknown || x.Late) })
}

// keepSecond leaves the second record of after as it was, and adds the spoilt
// one.
const keepSecond = true

// spoil changes one record of those that are fit for it.
func spoil(r *rand.Rand, h []Record, fit func(*Record) bool, change func(*Record)) ([]Record, bool) {
	h = slices.Clone(h)
	for _, i := range r.Perm(len(h)) {
		if fit(&h[i]) {
			change(&h[i])
			return h, true
		}
	}
	return nil, false
}

// after changes the second of two records of a key of which one was answered
// before the other was asked.
func after(r *rand.Rand, h []Record, fit func(x, y *Record) bool, change func(x, y *Record), keep ...bool) ([]Record, bool) {
	h = slices.Clone(h)
	for _, i := range r.Perm(len(h)) {
		for _, k := range r.Perm(len(h)) {
			x, y := &h[i], &h[k]
			if x.Key != y.Key || x.Answer == Unknown || x.ReturnNs >= y.CallNs || !fit(x, y) {
				continue
			}
			spoilt := *y
			change(x, &spoilt)
			if len(keep) > 0 {
				return append(h, spoilt), true
			}
			*y = spoilt
			return h, true
		}
	}
	return nil, false
}

// TestRandom makes histories that are linearizable, wants them found so, breaks
// each in every way, and wants that found too.
func TestRandom(t *testing.T) {
	first, n := number(t, "BORG_HISTORY_SEED", 1), number(t, "BORG_HISTORY_SEEDS", 150)
	broken := map[string]int{}
	for seed := first; seed < first+n && !t.Failed(); seed++ {
		r := rand.New(rand.NewPCG(seed, 1))
		h := generate(r, 20+r.IntN(200), 1+r.IntN(12), 1+r.IntN(4))
		if v := Check(h, time.Minute); v.Illegal+v.Unknown != 0 {
			t.Errorf("a good history: %+v\n%s", v, v.Detail)
		}
		for _, name := range sortedNames() {
			spoilt, ok := breaks[name](r, h)
			if !ok {
				continue
			}
			broken[name]++
			if v := Check(spoilt, time.Minute); v.Illegal != 1 {
				t.Errorf("%s: %+v", name, v)
			}
		}
		if t.Failed() {
			t.Logf("repeat with: BORG_HISTORY_SEED=%d BORG_HISTORY_SEEDS=1 go test ./history -run TestRandom", seed)
		}
	}
	if t.Failed() {
		return
	}
	for _, name := range sortedNames() {
		if t.Logf("%4d times: %s", broken[name], name); n >= 100 && broken[name] < int(n)/3 {
			t.Errorf("%s: only %d of %d histories could be broken so", name, broken[name], n)
		}
	}
}

func sortedNames() (names []string) {
	for name := range breaks {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// BenchmarkCheck is what a chaos run hands in: 100,000 operations.
func BenchmarkCheck(b *testing.B) {
	for _, c := range []struct{ clients, keys int }{{8, 200}, {32, 200}, {32, 1000}} {
		h := generate(rand.New(rand.NewPCG(1, 1)), 100_000, c.clients, c.keys)
		b.Run(fmt.Sprintf("clients=%d/keys=%d", c.clients, c.keys), func(b *testing.B) {
			for b.Loop() {
				if v := Check(h, time.Minute); v.Illegal+v.Unknown != 0 {
					b.Fatalf("%+v", v)
				}
			}
		})
	}
}

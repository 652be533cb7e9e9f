package plan

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// Study is one of the paper's questions what a choice costs in machines (§5.2 to
// §5.5): the workload is compacted as it is, and as it would be without the
// choice; the overhead is how many more machines that needs, in percent of the
// first. Parts are compacted each on machines of its own, as many of them as the
// whole cell has.
type Study struct {
	Name string
	// Parts are what is compacted; the first is the cell as it is.
	Parts []Part
	// Variants are sums of parts.
	Variants []Variant
	// Notes say what was done to the workload.
	Notes []string

	cell    *cell.Cell
	cfg     scheduler.Config
	pending int
	made    clones
}

// Part is a workload.
type Part struct {
	Name string
	*Compaction
}

// Variant needs the machines of its parts, each a cell of its own, and some more.
type Variant struct {
	Name string
	// Parts are places in Study.Parts.
	Parts []int
	// Extra machines are taken whole.
	Extra int
}

// Overhead is what a variant costs.
type Overhead struct {
	Variant string `json:"variant"`
	Cells   int    `json:"cells"`
	// Machines is the 90th percentile over the trials of what all parts need
	// together, and Extra.
	Machines int `json:"machines"`
	Extra    int `json:"machinesForOversized,omitempty"`
	// Percent more than the 90th percentile of the cell as it is needs; Least and
	// Most are the ends of the trials.
	Percent float64 `json:"overheadPercent"`
	Least   float64 `json:"leastPercent"`
	Most    float64 `json:"mostPercent"`
	// All trials in percent, sorted.
	All []float64 `json:"trials"`
}

// Setup says what a study is asked with. Which fields count depends on the study.
type Setup struct {
	// Cells are the numbers of cells that a subdivision is tried with.
	Cells []int
	// Seed of the order in which jobs are dealt to them.
	Seed uint64
	// UserMemBytes is what a user's live tasks ask for at least who gets a cell of
	// his own.
	UserMemBytes int64
	// MarginsPermille are the margins that the estimator may keep beyond what is
	// used, by name, and Made the name of the one that the cell ran with.
	Margins []Margin
	Made    string
	// Pending tasks of each cell may find no place, as in Of.
	Pending int
}

// Margin is what an estimator keeps beyond what is used, in thousandths of that.
type Margin struct {
	Name     string
	Permille int64
}

// Studies are the names that NewStudy knows, in the paper's order.
var Studies = []string{"segregate", "split-by-user", "subdivide", "bucket", "no-reclamation", "estimator"}

// NewStudy gets a study ready. Only reads of the cell follow.
func NewStudy(c *cell.Cell, cfg scheduler.Config, name string, q Setup) (*Study, error) {
	st := &Study{Name: name, cell: c, cfg: cfg, pending: q.Pending}
	if _, err := st.part("one cell", Of{}); err != nil {
		return nil, err
	}
	if k := st.Parts[0]; len(k.Nowhere) > 0 {
		st.Notes = append(st.Notes, fmt.Sprintf("%d tasks are left out, as no machine could hold them even if it were empty: %s", k.NowhereTasks, strings.Join(k.Nowhere, ", ")))
	}
	switch name {
	case "segregate":
		return st, st.segregate()
	case "split-by-user":
		return st, st.splitByUser(q.UserMemBytes)
	case "subdivide":
		return st, st.subdivide(q.Cells, q.Seed)
	case "bucket":
		return st, st.bucket()
	case "no-reclamation":
		return st, st.noReclamation()
	case "estimator":
		return st, st.estimator(q.Margins, q.Made)
	}
	return nil, fmt.Errorf("there is no study %q; studies: %s", name, strings.Join(Studies, ", "))
}

// part compacts some of the workload and says which of Parts it is.
func (st *Study) part(name string, of Of) (int, error) {
	of.clones, of.Pending = &st.made, st.pending
	k, err := NewCompaction(st.cell, st.cfg, of)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	st.Parts = append(st.Parts, Part{name, k})
	return len(st.Parts) - 1, nil
}

// split makes a variant of cells by what belongs of a job or alloc set to which. A
// job that runs in an alloc set goes where that goes.
func (st *Study) split(name string, cells []string, belongs func(key cell.JobKey, priority int32) string) error {
	v := Variant{Name: name}
	for n, of := range cells {
		in := func(key cell.JobKey, priority int32) bool { return belongs(key, priority) == of }
		// Cells of their own lose other machines.
		i, err := st.part(name+": "+of, Of{
			Order: uint32(n),
			Jobs: func(j *cell.Job) bool {
				if key, ok := j.AllocSet(); ok {
					if s := st.cell.AllocSet(key); s != nil {
						return in(s.Key(), s.Priority())
					}
				}
				return in(j.Key(), j.Priority())
			},
			AllocSets: func(s *cell.AllocSet) bool { return in(s.Key(), s.Priority()) },
		})
		if err != nil {
			return err
		}
		v.Parts = append(v.Parts, i)
	}
	st.Variants = append(st.Variants, v)
	return nil
}

// segregate puts production and the rest into cells of their own (Figure 5).
func (st *Study) segregate() error {
	return st.split("production apart", []string{"production", "the rest"}, func(_ cell.JobKey, priority int32) string {
		if priority >= productionPriority {
			return "production"
		}
		return "the rest"
	})
}

// splitByUser gives large users cells of their own (Figure 6).
func (st *Study) splitByUser(memBytes int64) error {
	asks := make(map[string]int64)
	for j := range st.cell.Jobs() {
		if isDaemonJob(j) {
			continue
		}
		for i, t := range j.Tasks() {
			if t.State() != borgpb.State_STATE_DEAD {
				asks[j.Key().User] += j.Need(i).Resources.MemBytes
			}
		}
	}
	var large []string
	most := int64(0)
	for user, bytes := range asks {
		if most = max(most, bytes); bytes >= memBytes {
			large = append(large, user)
		}
	}
	if len(large) == 0 {
		return fmt.Errorf("no user's tasks ask for %d bytes of memory; the most that one asks for are %d", memBytes, most)
	}
	slices.SortFunc(large, func(a, b string) int { return cmp.Or(cmp.Compare(asks[b], asks[a]), cmp.Compare(a, b)) })
	cells := slices.Clone(large)
	if len(large) < len(asks) {
		cells = append(cells, "all others")
	}
	return st.split("large users apart", cells, func(key cell.JobKey, _ int32) string {
		if asks[key.User] >= memBytes {
			return key.User
		}
		return "all others"
	})
}

// subdivide deals the jobs, in an order that is drawn, to so many cells in turn
// (Figure 7).
func (st *Study) subdivide(cells []int, seed uint64) error {
	type drawn struct {
		key   cell.JobKey
		order uint64
	}
	var jobs []drawn
	deal := func(key cell.JobKey, live bool) {
		if live {
			jobs = append(jobs, drawn{key, draw(seed, key.String())})
		}
	}
	for s := range st.cell.AllocSets() {
		deal(s.Key(), s.State() != borgpb.State_STATE_DEAD)
	}
	for j := range st.cell.Jobs() {
		if _, in := j.AllocSet(); !in && !isDaemonJob(j) {
			deal(j.Key(), j.State() != borgpb.State_STATE_DEAD)
		}
	}
	slices.SortFunc(jobs, func(a, b drawn) int { return cmp.Or(cmp.Compare(a.order, b.order), a.key.Compare(b.key)) })
	turn := make(map[cell.JobKey]int, len(jobs))
	for i, d := range jobs {
		turn[d.key] = i
	}
	for _, n := range cells {
		if n < 2 || n > len(jobs) {
			return fmt.Errorf("a cell with %d jobs cannot be divided into %d", len(jobs), n)
		}
		var names []string
		for i := range n {
			names = append(names, fmt.Sprint(i+1))
		}
		err := st.split(fmt.Sprintf("%d cells", n), names, func(key cell.JobKey, _ int32) string { return names[turn[key]%n] })
		if err != nil {
			return err
		}
	}
	return nil
}

// draw is a number that follows from a seed and a name.
func draw(seed uint64, name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	// The finalizer of splitmix64.
	x := h.Sum64() ^ seed*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Buckets begin at these amounts (§5.4).
const (
	leastCPUMilli = 500
	leastMemBytes = 1 << 30
)

// bucket rounds what production asks for up to powers of two (Figure 9). What fits
// nowhere then, although the cell is there four times, is left waiting in one
// variant and given machines of its own in the other.
func (st *Study) bucket() error {
	resize := func(priority int32, asked cell.Resources) cell.Resources {
		if priority >= productionPriority {
			asked.CPUMilli, asked.MemBytes = bucketOf(asked.CPUMilli, leastCPUMilli), bucketOf(asked.MemBytes, leastMemBytes)
		}
		return asked
	}
	oversized, err := st.oversized(resize)
	if err != nil {
		return err
	}
	i, err := st.part("bucketed", Of{Resize: resize, Left: func(j *cell.Job, index uint32) bool { return oversized[taskKey{j.UID(), index}] }})
	if err != nil {
		return err
	}
	if n := len(oversized); n > 0 {
		st.Notes = append(st.Notes, fmt.Sprintf("%d tasks of production fit nowhere when rounded up, with the machines there %d times", n, maxClones))
	}
	st.Variants = []Variant{
		{Name: "lower bound: those wait", Parts: []int{i}},
		{Name: "upper bound: each has a machine", Parts: []int{i}, Extra: len(oversized)},
	}
	return nil
}

// oversized are the tasks of production that find no place however many machines
// there are.
func (st *Study) oversized(resize func(int32, cell.Resources) cell.Resources) (map[taskKey]bool, error) {
	whole := st.Parts[0].packing
	left := make(map[taskKey]bool)
	k := whole
	k.Resize = resize
	k.Unplaced = func(j *cell.Job, index uint32) {
		if j.Priority() >= productionPriority {
			left[taskKey{j.UID(), index}] = true
		}
	}
	var err error
	if k.Machines, err = st.made.of(st.cell, maxClones); err != nil {
		return nil, err
	}
	_, err = k.Pack(func(*cell.Machine) bool { return true })
	return left, err
}

// bucketOf is the least power of two, times least, that holds an amount; nothing
// asked for stays nothing.
func bucketOf(amount, least int64) int64 {
	if amount <= 0 {
		return amount
	}
	for b := least; ; b *= 2 {
		if b >= amount || b > 1<<61 {
			return max(b, amount)
		}
	}
}

// noReclamation places everything by limits (Figure 10).
func (st *Study) noReclamation() error {
	st.reclaims()
	i, err := st.part("limits", Of{Reserved: func(j *cell.Job, index uint32) cell.Resources { return j.Need(index).Resources }})
	if err != nil {
		return err
	}
	st.Variants = []Variant{{Name: "no reclamation", Parts: []int{i}}}
	return nil
}

// reclaims notes when there is nothing to reclaim.
func (st *Study) reclaims() {
	for m := range st.cell.Machines() {
		for p := range m.Copies() {
			if limit, held := p.Held(true), p.Held(false); held.CPUMilli < limit.CPUMilli || held.MemBytes < limit.MemBytes {
				return
			}
		}
	}
	st.Notes = append(st.Notes, "no task of this cell reserves less than its limit, so there is nothing to reclaim")
}

// estimator tries other margins (Figure 12 tried them one after the other on a live
// cell). What a task uses follows from what it reserves and the margin that this
// was made with; a task that reserves its limit goes on doing so.
func (st *Study) estimator(margins []Margin, made string) error {
	st.reclaims()
	at := slices.IndexFunc(margins, func(m Margin) bool { return m.Name == made })
	if at < 0 {
		return fmt.Errorf("there is no setting %q of the estimator", made)
	}
	was := 1000 + margins[at].Permille
	for _, m := range margins {
		v := Variant{Name: m.Name, Parts: []int{0}}
		if m.Name != made {
			is := 1000 + m.Permille
			other := func(reserved, limit int64) int64 {
				if reserved >= limit {
					return reserved
				}
				return min(reserved/was*is+reserved%was*is/was, limit)
			}
			i, err := st.part(m.Name, Of{Reserved: func(j *cell.Job, index uint32) cell.Resources {
				r := j.Need(index).Resources
				if p := j.Task(index).Current(); p != nil {
					limit := p.Held(true)
					r = p.Held(false)
					r.CPUMilli, r.MemBytes = other(r.CPUMilli, limit.CPUMilli), other(r.MemBytes, limit.MemBytes)
				}
				return r
			}})
			if err != nil {
				return err
			}
			v.Parts = []int{i}
		}
		st.Variants = append(st.Variants, v)
	}
	return nil
}

// Overheads are what the variants cost; results has the trials of each part, in one
// order.
func (st *Study) Overheads(results [][]Probe) (base Compacted, all []Overhead) {
	base = Sum(results[0])
	percent := func(n int) float64 { return 100 * float64(n-base.Machines) / float64(max(base.Machines, 1)) }
	for _, v := range st.Variants {
		o := Overhead{Variant: v.Name, Cells: len(v.Parts), Extra: v.Extra}
		sums := make([]int, len(results[0]))
		for i := range sums {
			sums[i] = v.Extra
			for _, part := range v.Parts {
				sums[i] += results[part][i].Machines
			}
		}
		slices.Sort(sums)
		o.Machines = sums[rank(len(sums))]
		o.Percent, o.Least, o.Most = percent(o.Machines), percent(sums[0]), percent(sums[len(sums)-1])
		for _, n := range sums {
			o.All = append(o.All, percent(n))
		}
		all = append(all, o)
	}
	return base, all
}

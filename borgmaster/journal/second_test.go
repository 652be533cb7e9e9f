package journal

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

var keeperSeed = flag.Uint64("keeper-seed", 0, "run TestKeepersLoseNothing with this seed alone")

const (
	aSecond = int64(1e9)
	// Some windows go by in each run.
	keptWindowNs = 60 * aSecond
	keptSilentNs = 15 * aSecond
	keptReplicas = 4
	keptMachines = 6
	keptSeconds  = 500
	keeperSeeds  = 40
)

// keptCell is replicas that poll machines, keep what they are told, and fail.
type keptCell struct {
	t        *testing.T
	rng      *rand.Rand
	nowNs    int64
	replicas []*keptReplica
	// Who polls which machine.
	owner [keptMachines]*keptReplica
	// Messages that arrive later than they were waited for.
	late []lateMessage
	// What polls told, by part of a window.
	told map[usageID]*toldPart
	// When a replica last ended.
	failedNs int64
	lostDisk *keptReplica
}

// toldPart is what one replica was told of one copy in one window.
type toldPart struct {
	by       *keptReplica
	atNs     []int64
	cpu, mem []int64
	// So many must not be lost; -1: all.
	safe int
}

type lateMessage struct {
	atNs int64
	to   *keptReplica
	req  *borgrpc.KeepUsageRequest
}

type keptReplica struct {
	id        uint64
	up        bool
	windows   *Windows
	second    *Second
	drafts    *Drafts
	disk      []*borgpb.UsageRow
	startedNs int64
	// It does nothing until then.
	hangsUntilNs int64
	// All that it was told until then is kept by another one too.
	safeNs int64
	// When something last went wrong that it can know of.
	troubleNs int64
	// It has worked for so long since a replica ended that what it held of it is kept.
	sound bool
}

func (r *keptReplica) start(nowNs int64) {
	r.up, r.windows, r.drafts = true, NewWindows(r.id, keptWindowNs), NewDrafts(maxDrafts, keptSilentNs)
	// Small messages, so that a round has several.
	r.second = NewSecond(r.id, r.windows, 5)
	r.safeNs, r.troubleNs, r.startedNs = 0, nowNs, nowNs
}

func (r *keptReplica) works(nowNs int64) bool { return r.up && nowNs >= r.hangsUntilNs }

func newKeptCell(t *testing.T, seed uint64) *keptCell {
	c := &keptCell{t: t, rng: rand.New(rand.NewPCG(seed, seed)), nowNs: 1_700_000_000 * aSecond, told: map[usageID]*toldPart{}}
	for id := range uint64(keptReplicas) {
		r := &keptReplica{id: id + 1}
		r.start(c.nowNs)
		c.replicas = append(c.replicas, r)
	}
	for m := range c.owner {
		c.owner[m] = c.replicas[m%keptReplicas]
	}
	return c
}

func (c *keptCell) chance(oneIn int) bool { return c.rng.IntN(oneIn) == 0 }

// poll has a machine tell its owner what two copies and an alloc used.
func (c *keptCell) poll(m int) {
	r := c.owner[m]
	if !r.works(c.nowNs) {
		return
	}
	machine := fmt.Sprint("m", m)
	var told []*borgrpc.Usage
	for copy := range uint32(2) {
		told = append(told, &borgrpc.Usage{Copy: &borgrpc.CopyID{JobUid: "job", Index: copy, Attempt: uint64(m)}, CpuMilliMean: c.rng.Int64N(1000), MemBytesMean: c.rng.Int64N(1000)})
	}
	alloc := &borgrpc.AllocUsage{Alloc: fmt.Sprint("ann/set/", m), Usage: &borgrpc.Usage{CpuMilliMean: c.rng.Int64N(1000), MemBytesMean: c.rng.Int64N(1000)}}
	r.windows.Add(c.nowNs, machine, told, []*borgrpc.AllocUsage{alloc})
	note := func(id usageID, u *borgrpc.Usage) {
		s := r.windows.open[copyKey{machine: machine, alloc: map[bool]string{true: alloc.Alloc}[id.ofAlloc], uid: map[bool]string{false: "job"}[id.ofAlloc], index: u.GetCopy().GetIndex(), attempt: u.GetCopy().GetAttempt()}]
		id.fromNs, id.replica, id.machine = s.fromNs, r.id, machine
		part := c.told[id]
		if part == nil {
			part = &toldPart{by: r, safe: -1}
			c.told[id] = part
		}
		part.atNs, part.cpu, part.mem = append(part.atNs, c.nowNs), append(part.cpu, u.CpuMilliMean), append(part.mem, u.MemBytesMean)
	}
	for _, u := range told {
		note(usageID{job: "job", index: u.Copy.Index, attempt: u.Copy.Attempt}, u)
	}
	note(usageID{ofAlloc: true, job: "ann/set", index: uint32(m)}, alloc.Usage)
}

// keep writes rows as a replica does, which may know their names or not.
func (c *keptCell) keep(r *keptReplica, rows []*borgpb.UsageRow) []*borgpb.UsageRow {
	for _, row := range rows {
		if row.OfAlloc {
			row.JobUid, row.Attempt = fmt.Sprint("uid-", c.rng.IntN(3)), uint64(c.rng.IntN(3))
		} else if c.chance(2) {
			row.Job = "ann/job"
		}
		r.disk = append(r.disk, proto.CloneOf(row))
	}
	return rows
}

// round is one of the master's.
func (c *keptCell) round(r *keptReplica, all bool) {
	rows, beforeNs := r.windows.Take(c.nowNs, all)
	r.second.Finished(c.keep(r, rows), beforeNs)
	if rescued := c.keep(r, r.drafts.Silent(c.nowNs, all)); !all {
		r.second.Also(rescued)
	}
	var others []uint64
	for _, other := range c.replicas {
		if other != r {
			others = append(others, other.id)
		}
	}
	for failed := 0; failed < len(others); {
		to, req := r.second.Message(c.nowNs, others)
		if req == nil {
			break
		}
		again, ok := c.send(c.replicas[to-1], proto.CloneOf(req))
		if !ok {
			r.second.Failed(others)
			r.troubleNs = c.nowNs
			failed++
		} else if !r.second.Answered(again) {
			break
		} else if !all && len(r.second.waiting) > 0 && c.lostDisk == nil && c.chance(3) && c.settled() {
			c.end(r, true, true)
			return
		}
	}
	if len(r.second.waiting)+len(r.windows.undrafted) == 0 && (r.second.session > 0 || r.windows.Open() == 0) {
		r.safeNs = c.nowNs
	}
}

// send has a replica take a message, or not, or when nobody waits for the answer any more.
func (c *keptCell) send(to *keptReplica, req *borgrpc.KeepUsageRequest) (again, ok bool) {
	if !WholeDrafts(req.Drafts) {
		c.t.Fatalf("the drafts are not whole: %v", req.Drafts)
	}
	switch {
	case !to.up:
		return false, false
	case !to.works(c.nowNs) || c.chance(100):
		if c.chance(2) {
			c.late = append(c.late, lateMessage{max(to.hangsUntilNs, c.nowNs+c.rng.Int64N(20)*aSecond), to, req})
		}
		return false, false
	case c.chance(100):
		c.take(to, req)
		return false, false
	}
	return !c.take(to, req), true
}

func (c *keptCell) take(r *keptReplica, req *borgrpc.KeepUsageRequest) (known bool) {
	for _, row := range req.Rows {
		r.disk = append(r.disk, proto.CloneOf(row))
	}
	return r.drafts.Hear(c.nowNs, req)
}

// end stops a replica: in order, or as kill -9 does, with its disk or without.
func (c *keptCell) end(r *keptReplica, kill, loseDisk bool) {
	if !kill {
		c.round(r, true)
	} else if c.nowNs-r.troubleNs > 3*aSecond && r.works(c.nowNs) && c.nowNs-r.safeNs > aSecond {
		c.t.Errorf("replica %d is killed in quiet, and for %d s nobody has what it was told", r.id, (c.nowNs-r.safeNs)/aSecond)
	}
	for id, part := range c.told {
		if part.by == r && kill && part.safe < 0 && (r.windows.holds(id) || loseDisk && has(r.second.waiting, id)) {
			part.safe, _ = slices.BinarySearch(part.atNs, r.safeNs+1)
		}
	}
	if loseDisk {
		c.lostDisk, r.disk = r, nil
	}
	r.up, r.windows, r.second, r.drafts = false, nil, nil, nil
	r.hangsUntilNs = 0
	c.fails()
}

// fails notes that it takes a while from now on until what was lost is made up for.
func (c *keptCell) fails() {
	c.failedNs = c.nowNs
	for _, r := range c.replicas {
		r.sound = false
	}
}

// holds says whether a part is in memory alone.
func (w *Windows) holds(id usageID) bool {
	for _, s := range w.open {
		if row := w.row(s); row != nil && idOf(row) == id {
			return true
		}
	}
	return has(w.done, id)
}

func has(rows []*borgpb.UsageRow, id usageID) bool {
	return slices.ContainsFunc(rows, func(row *borgpb.UsageRow) bool { return idOf(row) == id })
}

// settled says whether what failed last has been made up for: losing two things at once
// may lose something.
func (c *keptCell) settled() bool {
	for _, r := range c.replicas {
		if r.up && (!r.sound || r.safeNs <= c.failedNs) {
			return false
		}
	}
	return true
}

func (c *keptCell) second() {
	c.nowNs += aSecond
	late := c.late
	c.late = nil
	for _, l := range late {
		switch {
		case l.atNs > c.nowNs:
			c.late = append(c.late, l)
		case l.to.works(c.nowNs):
			c.take(l.to, l.req)
			// Who sent it, and is gone since, was heard of once more.
			c.fails()
		}
	}
	for m := range c.owner {
		if c.chance(60) || !c.owner[m].up {
			if c.owner[m].up {
				c.owner[m].windows.Left(fmt.Sprint("m", m))
			}
			c.owner[m] = c.replicas[c.rng.IntN(keptReplicas)]
		}
		if c.chance(5) {
			c.poll(m)
		}
	}
	for _, r := range c.replicas {
		switch {
		case !r.up:
			if c.chance(20) && r != c.lostDisk {
				r.start(c.nowNs)
			}
			continue
		case c.chance(200):
			r.hangsUntilNs = c.nowNs + c.rng.Int64N(40)*aSecond
			r.troubleNs = r.hangsUntilNs
		}
		if c.chance(20) && c.settled() && r.up {
			kill := !c.chance(4)
			// One disk is lost at most: whoever loses a second one later loses rows.
			c.end(r, kill, kill && c.lostDisk == nil && c.chance(4))
		}
		if r.works(c.nowNs) {
			c.round(r, false)
		}
		if r.works(c.nowNs) {
			r.sound = r.sound || c.nowNs-max(c.failedNs, r.hangsUntilNs, r.startedNs) > keptSilentNs+2*aSecond
		}
	}
}

// check compares what is told in the end with what polls told.
func (c *keptCell) check() {
	var all []*borgpb.UsageRow
	for _, r := range c.replicas {
		for _, row := range r.disk {
			all = append(all, proto.CloneOf(row))
		}
	}
	rows := Furthest(all)
	got := map[usageID]int{}
	ends := map[string]int64{}
	for _, row := range rows {
		id := idOf(row)
		part := c.told[id]
		if part == nil || int(row.Samples) > len(part.atNs) {
			c.t.Errorf("a row that nobody was told of: %v", row)
			continue
		}
		got[id] = int(row.Samples)
		var cpu, mem int64
		for i := range row.Samples {
			cpu, mem = cpu+part.cpu[i], mem+part.mem[i]
		}
		if row.ToNs != part.atNs[row.Samples-1] || row.CpuMilliMean != cpu/int64(row.Samples) || row.MemBytesMean != mem/int64(row.Samples) {
			c.t.Errorf("%v is not what the first %d polls of it told", row, row.Samples)
		}
		// Rows come by their beginnings.
		of := fmt.Sprint(row.Machine, row.OfAlloc, row.Index)
		if row.FromNs <= ends[of] {
			c.t.Errorf("%v was told in part before", row)
		}
		ends[of] = row.ToNs
	}
	for id, part := range c.told {
		want := part.safe
		if want < 0 {
			want = len(part.atNs)
		}
		if got[id] < want {
			c.t.Errorf("of %+v %d of %d samples are told, and %d must not be lost", id, got[id], len(part.atNs), want)
		}
	}
}

// TestKeepersLoseNothing kills replicas, hangs them, loses a disk, messages and answers, and
// moves machines from one to the other. Everything is told once, and but for what a killed
// one was told since its last round nothing is lost.
func TestKeepersLoseNothing(t *testing.T) {
	seeds := slices.Collect(func(yield func(uint64) bool) {
		for range keeperSeeds {
			if !yield(rand.Uint64()) {
				return
			}
		}
	})
	if *keeperSeed != 0 {
		seeds = []uint64{*keeperSeed}
	}
	kills, cut := 0, 0
	for _, seed := range seeds {
		c := newKeptCell(t, seed)
		for range keptSeconds {
			c.second()
		}
		for _, r := range c.replicas {
			if r.up {
				r.hangsUntilNs = 0
				c.round(r, true)
			}
		}
		c.check()
		for part := range maps.Values(c.told) {
			if part.safe >= 0 {
				kills++
				cut += len(part.atNs) - part.safe
			}
		}
		if t.Failed() {
			t.Fatalf("again: go test ./borgmaster/journal -run KeepersLoseNothing -keeper-seed %d", seed)
		}
	}
	t.Logf("kills cut off %d parts of windows, and of all of them together %d samples", kills, cut)
	if *keeperSeed == 0 && (kills == 0 || cut == 0) {
		t.Error("nothing was tried")
	}
}

// TestDraftsAreBounded: what there is no room for is counted, and what was taken in goes on.
func TestDraftsAreBounded(t *testing.T) {
	d := NewDrafts(1, keptSilentNs)
	row := func(index uint32) *borgpb.UsageRow {
		return &borgpb.UsageRow{JobUid: "1-2-0", Index: index, Attempt: 1, FromNs: 1, ToNs: 2, Samples: 1}
	}
	rows := []*borgpb.UsageRow{row(0), row(1)}
	d.Hear(1, &borgrpc.KeepUsageRequest{Replica: 2, Session: 5, Begins: true, Drafts: &borgrpc.UsageDrafts{Rows: rows, RowNumbers: []uint64{1, 2}}})
	if d.held != 1 || d.lost != 1 {
		t.Errorf("with room for one, %d are held and %d lost", d.held, d.lost)
	}
	if left := d.Silent(1+keptSilentNs, false); len(left) != 1 || left[0].GetIndex() != 0 {
		t.Errorf("of the replica that fell silent there are %v", left)
	}
}

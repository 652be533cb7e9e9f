package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/client"
	"borg/borgmaster/selector"
	"borg/borgmaster/watch"
	"borg/fauxmaster"
	"borg/fauxmaster/fleet"
	"borg/history/told"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// What replicas keep for watches, and how much waits for one.
	watchKeep, watchQueue = "100ms", "20"
	// Jobs, alloc sets and machines that are changed.
	watchNames = 12
	// Pause of each writer between changes.
	watchWriteEvery = 20 * time.Millisecond
	watchWriters    = 3
	// Changes that are made while a watcher does not read: more than what lies between
	// it and a replica can hold.
	watchStall = 150
	// After so many messages it stalls again: more than were under way when it did not read.
	watchReads = 500
	// What a connection holds for a watch that is not read: the least that there is.
	watchWindowBytes = 64 << 10
)

// watcherAt watches one replica after another and keeps what it is told.
type watcherAt struct {
	t     *testing.T
	query watch.Query
	req   *borgrpc.WatchRequest
	conns []borgrpc.WatchServiceClient
	// Draws the replicas. Owned by its goroutine, as are did and heard.
	random *rand.Rand
	// Nil: a replica was asked anew.
	heard []*borgrpc.WatchResponse
	did   map[string]int
	// The last index that was told in full, and how often it was cut off.
	told, cut atomic.Uint64
	// Called after each message; an error has it leave the replica.
	pace func() error
}

var errMovesOn = errors.New("it asks another replica")

func (w *watcherAt) take(m *borgrpc.WatchResponse) error {
	w.heard = append(w.heard, m)
	if !m.More {
		w.told.Store(m.Index)
	}
	return w.pace()
}

// watch asks replica after replica until ctx ends.
func (w *watcherAt) watch(ctx context.Context) {
	at := w.random.IntN(len(w.conns))
	req := proto.CloneOf(w.req)
	for ctx.Err() == nil {
		w.heard = append(w.heard, nil)
		err := w.ask(ctx, at, req)
		switch code := status.Code(err); {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errMovesOn):
			w.did["moved on"]++
		case code == codes.Aborted:
			w.did["was cut off"]++
			w.cut.Add(1)
		case code == codes.OutOfRange:
			w.did["was told to list again"]++
			req.FromIndex, req.Epoch = 0, 0
		case code == codes.Unavailable || code == codes.DeadlineExceeded:
			w.did["lost its replica"]++
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		default:
			w.t.Errorf("watch %v from index %d: %v", w.query.Kind, req.FromIndex, err)
			return
		}
		// Another one.
		at = (at + 1 + w.random.IntN(len(w.conns)-1)) % len(w.conns)
	}
}

// ask watches at one replica. A replica that says nothing for long is left.
func (w *watcherAt) ask(ctx context.Context, at int, req *borgrpc.WatchRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := w.conns[at].Watch(ctx, req)
	if err != nil {
		return err
	}
	for first := req.FromIndex != 0; ; first = false {
		silence := time.AfterFunc(3*time.Second, cancel)
		m, err := s.Recv()
		if !silence.Stop() && err != nil {
			return status.Error(codes.DeadlineExceeded, "it says nothing")
		}
		if err != nil {
			return err
		}
		if first {
			w.did["went on elsewhere"]++
		}
		if !m.More {
			req.FromIndex, req.Epoch = m.Index, m.Epoch
		}
		if err := w.take(m); err != nil {
			return err
		}
	}
}

// hold says how many of the messages that it was told do not agree with the past: it
// looks no further than the first.
func (w *watcherAt) hold(past *told.Past) (broken int) {
	is := past.Watcher(w.query)
	for n, m := range w.heard {
		if m == nil {
			is.Again()
		} else if err := is.Take(m); err != nil {
			w.t.Errorf("%v, message %d of %d: %v", w.req, n, len(w.heard), err)
			return 1
		}
	}
	return 0
}

// changer changes what is watched, in a small cell of names.
type changer struct {
	c      *Cell
	client *client.Client
	random *rand.Rand
	number int
	made   *atomic.Int64
}

func (x *changer) run(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		_, err := x.client.Mutate(ctx, x.op(t))
		var refused *client.RefusedError
		switch {
		case err == nil:
			x.made.Add(1)
		case ctx.Err() == nil && !errors.As(err, &refused):
			t.Errorf("a change: %v", err)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchWriteEvery):
		}
	}
}

// op is a random change. Each writer has names of its own, so that most are done.
func (x *changer) op(t *testing.T) *borgpb.Op {
	user, r := x.c.user, x.random
	name := fmt.Sprintf("w%d-%d", x.number, r.IntN(watchNames))
	labels := map[string]string{"tier": []string{"front", "back"}[r.IntN(2)], "n": fmt.Sprint(r.IntN(4))}
	spec := sleepers(4 + r.IntN(12))
	spec.Task.Args[2] = fmt.Sprint("exec sleep ", 1_000_000+r.IntN(1000))
	raw := encodeSpec(t, spec)
	machine := x.c.machineName(1 + r.IntN(x.c.Machines))
	switch n := r.IntN(100); {
	case n < 30:
		return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: name, Labels: labels, Spec: raw}}}
	case n < 45:
		return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: name}}}
	case n < 65:
		return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: user, Name: name, Labels: labels, Spec: raw}}}
	case n < 75:
		return &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: user, Name: name, Tasks: 1 + r.Uint32N(16)}}}
	case n < 80:
		set, err := proto.Marshal(&borgpb.AllocSetSpec{Allocs: 1 + r.Uint32N(6), Priority: 200, Resources: &borgpb.Resources{CpuMilli: 10, MemBytes: 16 << 20}})
		if err != nil {
			t.Error(err)
		}
		return &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: user, Name: "set-" + name, Labels: labels, Spec: set}}}
	case n < 85:
		return &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: user, Name: "set-" + name}}}
	case n < 95:
		return &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: machine, SetAttributes: labels}}}
	default:
		return &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: fmt.Sprintf("extra-%d-%d", x.number, r.IntN(50)), Labels: labels,
			Spec: &borgpb.MachineSpec{Addr: "127.0.0.1:1", Capacity: &borgpb.Resources{CpuMilli: 1, MemBytes: 1}}}}}
	}
}

// watchers are who watches a cell: each kind, by owner, by label, by name, quick ones,
// some that go away and come back, and one that does not read for a long time.
func watchers(t *testing.T, c *Cell, random *rand.Rand, made *atomic.Int64) (all []*watcherAt, end func()) {
	t.Helper()
	kinds := []borgpb.ObjectKind{
		borgpb.ObjectKind_OBJECT_KIND_TASK, borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_MACHINE,
		borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, borgpb.ObjectKind_OBJECT_KIND_ALLOC,
	}
	stopped := make(chan struct{})
	end = func() { close(stopped) }
	for i := range 15 {
		who := c.member(t, fmt.Sprint("watcher-", i))
		w := &watcherAt{t: t, random: rand.New(rand.NewPCG(random.Uint64(), uint64(i))), did: map[string]int{}, pace: func() error { return nil }}
		w.req = &borgrpc.WatchRequest{Kind: kinds[i%len(kinds)], Selector: []string{"", "tier=front", "n in (1,2), tier!=back"}[i/len(kinds)]}
		if i == len(kinds) {
			w.req.User, w.req.Name, w.req.Selector = c.user, "w0-1", ""
		}
		s, err := selector.Parse(w.req.Selector)
		if err != nil {
			t.Fatal(err)
		}
		w.query = watch.Query{Kind: w.req.Kind, User: w.req.User, Name: w.req.Name, Selector: s}
		for _, addr := range c.masterAddrs() {
			conn, err := door.Dial(addr, who, door.AnyMaster(who), grpc.WithInitialWindowSize(watchWindowBytes), grpc.WithInitialConnWindowSize(watchWindowBytes))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			w.conns = append(w.conns, borgrpc.NewWatchServiceClient(conn))
		}
		switch {
		case i == 0:
			w.pace = stalls(made, stopped)
		case i%3 == 1:
			// It is not there for a while.
			w.pace = func() error {
				if w.random.IntN(30) > 0 {
					return nil
				}
				select {
				case <-stopped:
				case <-time.After(time.Duration(w.random.IntN(200)) * time.Millisecond):
				}
				return errMovesOn
			}
		}
		all = append(all, w)
	}
	return all, end
}

// stalls reads some, and then nothing until many changes were made, again and again.
func stalls(made *atomic.Int64, stopped <-chan struct{}) func() error {
	read := 0
	return func() error {
		if read++; read%watchReads != 2 {
			return nil
		}
		for began := made.Load(); made.Load() < began+watchStall; {
			select {
			case <-stopped:
				return nil
			case <-time.After(10 * time.Millisecond):
			}
		}
		return nil
	}
}

// Who watches a real cell is told all, in order, once, wherever he goes on, while
// masters are killed and hang, what changed is forgotten after 100 ms, and one does not
// read. What they were told is held against what the archive of a master says.
func TestWatchersAreTold(t *testing.T) {
	alongside(t)
	c := fakeCell(t, 5, 6, fleet.Life{})
	c.alter = func(spec *processSpec) {
		if strings.HasPrefix(spec.Name, "master-") {
			spec.Args = append(spec.Args, "--watch-keep", watchKeep, "--watch-queue", watchQueue, "--checkpoint-every", "1s")
		}
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.hasLatestFormat(t)
	c.archivesBegin(t)
	before, err := c.client.GetCell(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	random := chance(t)
	var made atomic.Int64
	var writing, watching sync.WaitGroup
	writes, endWrites := context.WithCancel(t.Context())
	watches, endWatches := context.WithCancel(t.Context())
	defer writing.Wait()
	defer endWrites()
	defer watching.Wait()
	defer endWatches()
	all, endStalls := watchers(t, c, random, &made)
	for _, w := range all {
		watching.Go(func() { w.watch(watches) })
	}
	for i := range watchWriters {
		x := &changer{c: c, client: c.client, random: rand.New(rand.NewPCG(random.Uint64(), uint64(i))), number: i, made: &made}
		writing.Go(func() { x.run(writes, t) })
	}
	if err := until(shortly(t), "the one that does not read is cut off", func(context.Context) error {
		// A burst may have cut it off before it has stalled.
		if all[0].cut.Load() == 0 || made.Load() < watchStall {
			return fmt.Errorf("%d changes were made", made.Load())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	did := map[string]int{}
	for began := time.Now(); time.Since(began) < time.Duration(size(3, 60))*time.Second; {
		c.strikeMaster(t, random, did)
		<-time.After(time.Duration(200+random.IntN(1000)) * time.Millisecond)
	}
	endWrites()
	writing.Wait()
	endStalls()
	c.areTold(t, all)
	after, err := c.client.GetCell(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	endWatches()
	watching.Wait()
	c.sup.stopAll(shortly(t), c.processesOf(c.masterName, c.Masters), stopGrace)
	past, entries, err := c.past(all)
	if err != nil {
		t.Fatal(err)
	}
	sums, messages, broken := map[string]int{}, 0, 0
	for _, w := range all {
		broken += w.hold(past)
		messages += len(w.heard)
		for what, n := range w.did {
			sums[what] += n
		}
	}
	t.Logf("%d changes in %d entries, %d messages; faults: %v; terms %d to %d; watchers: %v", made.Load(), entries, messages, did, before.Term, after.Term, sums)
	for _, what := range []string{"was cut off", "was told to list again", "went on elsewhere"} {
		if sums[what] == 0 {
			t.Errorf("no watcher %s: %v", what, sums)
		}
	}
	if after.Term == before.Term {
		t.Error("nobody was elected meanwhile")
	}
	counted(t, "chaos.watch.broken", broken)
}

// strikeMaster kills or hangs a master, the elected one in half of the cases and the
// first time.
func (c *Cell) strikeMaster(t *testing.T, random *rand.Rand, did map[string]int) {
	t.Helper()
	i := 1 + random.IntN(c.Masters)
	if elected, err := c.electedNow(shortly(t)); err == nil && (len(did) == 0 || random.IntN(2) == 0) {
		i = elected
	}
	name := c.masterName(i)
	if len(did) > 0 && random.IntN(4) == 0 {
		did["hung"]++
		c.hang(t, name, time.Second)
		return
	}
	did["killed"]++
	if err := c.again(t.Context(), name, func(ctx context.Context) error { return c.StartMaster(ctx, i) }); err != nil {
		t.Fatal(err)
	}
}

// archivesBegin waits until each master has a checkpoint of its own, from which its
// archive can be played.
func (c *Cell) archivesBegin(t *testing.T) {
	t.Helper()
	err := until(shortly(t), "each archive has a checkpoint", func(context.Context) error {
		for i := 1; i <= c.Masters; i++ {
			if _, err := fauxmaster.OpenPast(c.masterDir(i)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// areTold waits until all watchers were told up to what there is now.
func (c *Cell) areTold(t *testing.T, all []*watcherAt) {
	t.Helper()
	var now uint64
	err := until(shortly(t), "all watchers are told all", func(ctx context.Context) error {
		if now == 0 {
			state, err := c.client.GetCell(ctx)
			if err != nil {
				return err
			}
			now = state.AppliedIndex
		}
		for i, w := range all {
			if told := w.told.Load(); told < now {
				return fmt.Errorf("watcher %d was told up to index %d of %d", i, told, now)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// past is what the archive of a master tells of the cell; one that has been sent a
// checkpoint meanwhile has a gap, and another one is looked at.
func (c *Cell) past(all []*watcherAt) (past *told.Past, entries int, err error) {
	var last uint64
	for _, w := range all {
		last = max(last, w.told.Load())
	}
	for i := 1; i <= c.Masters; i++ {
		archive, e := fauxmaster.OpenPast(c.masterDir(i))
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		tape, e := archive.At(archive.First())
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		past, entries = told.NewPast(), 0
		past.Look(tape.Cell)
		e = tape.Until(fauxmaster.Moment{Epoch: archive.First().Epoch, Index: last}, func(*fauxmaster.Step) error {
			past.Look(tape.Cell)
			entries++
			return nil
		})
		tape.Close()
		if e == nil {
			return past, entries, nil
		}
		err = errors.Join(err, e)
	}
	return nil, 0, fmt.Errorf("no master knows all of the past: %w", err)
}

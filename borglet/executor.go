package borglet

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// executor does effects: those of one copy one after the other, those of different copies at
// once, at most a few at a time. Higher bands go first, and users of one band take turns. Its
// queue per copy is bounded by the core, which has one run of a copy under way.
type executor struct {
	// fetch is done before a start has one of the slots: it may take minutes, and
	// hardly any of the processor. do hears why a start cannot be: fetch failed, or the copy
	// was told to stop while it waited.
	fetch func(context.Context, Record) error
	do    func(e Effect, startErr error)
	// life ends what waits to start.
	life context.Context
	// starts bounds how many runs are being started: that takes the processor
	// for tens of milliseconds each. others bounds all else, so that what is to
	// stop does not wait for what is to start.
	starts, others *Turns
	wg             sync.WaitGroup

	mu sync.Mutex
	// queues holds what is to be done for each copy that has a worker. Guarded
	// by mu.
	queues map[ID][]queued
	// waits ends the wait of a start for what it fetches and for its slot. Guarded by mu.
	waits map[ID]context.CancelFunc
}

// queued is an effect that waits, and whose it is.
type queued struct {
	effect Effect
	turn   Turn
}

// newExecutor makes one with so many slots for starts and for all else. Work below production has
// half of them at most, and no start below production begins while one of production is under way.
func newExecutor(life context.Context, starts, others int, fetch func(context.Context, Record) error, do func(Effect, error)) *executor {
	x := &executor{
		fetch:  fetch,
		do:     do,
		starts: NewTurns(starts, max(starts/2, 1)),
		others: NewTurns(others, max(others/2, 1)),
		life:   life,
		queues: map[ID][]queued{},
		waits:  map[ID]context.CancelFunc{},
	}
	x.starts.yields = true
	return x
}

// stops reports whether an effect ends the wait of its copy to start.
func stops(e Effect) bool {
	switch e := e.(type) {
	case Terminate, Kill, Destroy, Remove:
		return true
	case Save:
		return e.Record.Stop != nil
	}
	return false
}

// add queues an effect and never blocks.
func (x *executor) add(e Effect, turn Turn) {
	id := e.Copy()
	x.mu.Lock()
	defer x.mu.Unlock()
	queue, busy := x.queues[id]
	x.queues[id] = append(queue, queued{e, turn})
	if cancel := x.waits[id]; cancel != nil && stops(e) {
		cancel()
	}
	if !busy {
		x.wg.Go(func() { x.work(id) })
	}
}

// work does what is queued for one copy and ends when there is no more.
func (x *executor) work(id ID) {
	for {
		x.mu.Lock()
		queue := x.queues[id]
		if len(queue) == 0 {
			delete(x.queues, id)
			x.mu.Unlock()
			return
		}
		x.queues[id] = queue[1:]
		x.mu.Unlock()
		next := queue[0]
		if start, ok := next.effect.(Start); ok {
			x.start(start, next.turn)
			continue
		}
		// Every slot is given back in bounded time, and nothing that is queued is left undone.
		giveBack, _ := x.others.Take(context.Background(), next.turn)
		x.do(next.effect, nil)
		giveBack()
	}
}

// start brings what a start needs, waits for its turn, and does it. A copy that is told to stop
// meanwhile is not started.
func (x *executor) start(e Start, turn Turn) {
	id := e.Copy()
	ctx, cancel := context.WithCancel(x.life)
	defer cancel()
	x.mu.Lock()
	x.waits[id] = cancel
	if slices.ContainsFunc(x.queues[id], func(q queued) bool { return stops(q.effect) }) {
		cancel()
	}
	x.mu.Unlock()
	err := x.fetch(ctx, e.Record)
	giveBack := func() {}
	if err == nil {
		if giveBack, err = x.starts.Take(ctx, turn); err != nil {
			giveBack, err = func() {}, errors.New("it was told to stop before its turn to start, or its borglet ended")
		}
	}
	x.mu.Lock()
	delete(x.waits, id)
	x.mu.Unlock()
	x.do(e, err)
	giveBack()
}

// wait returns when all that was queued is done.
func (x *executor) wait() { x.wg.Wait() }

package borglet

import (
	"sync"
)

// executor does effects: those of one copy one after the other, those of
// different copies at once, at most a few at a time. Its queue per copy is
// bounded by the core, which has one run of a copy under way.
type executor struct {
	// fetch is done before a start has one of the slots: it may take minutes, and
	// hardly any of the processor. do hears what came of it.
	fetch func(Record) error
	do    func(e Effect, fetchErr error)
	// starts bounds how many runs are being started: that takes the processor
	// for tens of milliseconds each. slots bounds all else, so that what is to
	// stop does not wait for what is to start.
	starts, slots chan struct{}
	wg            sync.WaitGroup

	mu sync.Mutex
	// queues holds what is to be done for each copy that has a worker. Guarded
	// by mu.
	queues map[ID][]Effect
}

func newExecutor(starts, others int, fetch func(Record) error, do func(Effect, error)) *executor {
	return &executor{
		fetch:  fetch,
		do:     do,
		starts: make(chan struct{}, starts),
		slots:  make(chan struct{}, others),
		queues: map[ID][]Effect{},
	}
}

// add queues an effect and never blocks.
func (x *executor) add(e Effect) {
	id := e.Copy()
	x.mu.Lock()
	defer x.mu.Unlock()
	queue, busy := x.queues[id]
	x.queues[id] = append(queue, e)
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
		slots := x.slots
		var fetchErr error
		if start, ok := queue[0].(Start); ok {
			slots = x.starts
			fetchErr = x.fetch(start.Record)
		}
		slots <- struct{}{}
		x.do(queue[0], fetchErr)
		<-slots
	}
}

// wait returns when all that was queued is done.
func (x *executor) wait() { x.wg.Wait() }

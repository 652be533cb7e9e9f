package fauxmaster

import (
	"container/heap"
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"
)

const (
	// With Max, time goes on at most so far at once: the master has its say at
	// least so often.
	maxLeapNs = int64(time.Minute)
	// What is due within so much of the next thing is done in one leap with it, in
	// order: thousands of tasks that start are not waited for one by one.
	leapGrainNs = int64(100 * time.Millisecond)
	// Real time between two words to the cell that time has passed.
	tellEvery = time.Second
	// Real time between two looks whether all has settled.
	restEvery = 5 * time.Millisecond
	maxFactor = 1_000_000
)

// Speed is how time goes in a World. The zero value: it stands still.
type Speed struct {
	// So many times as fast as outside.
	Factor float64
	// Whenever all has settled, time goes on at once to what is due next.
	Max bool
}

// ParseSpeed reads a factor, "max" or "stop".
func ParseSpeed(text string) (Speed, error) {
	switch text {
	case "stop":
		return Speed{}, nil
	case "max":
		return Speed{Max: true}, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f >= 0 && f <= maxFactor) {
		return Speed{}, fmt.Errorf("%q is no speed: want a number from 0 to %d, max, or stop", text, maxFactor)
	}
	return Speed{Factor: f}, nil
}

func (s Speed) String() string {
	switch {
	case s.Max:
		return "as fast as it can"
	case s.Factor == 0:
		return "time stands still"
	case s.Factor == 1:
		return "as fast as outside"
	}
	return strconv.FormatFloat(s.Factor, 'g', -1, 64) + " times as fast as outside"
}

// World is the time of a simulated cell, and what is to happen in it. Its time
// begins at 0, which is the moment of the picture, and never goes back. What
// happens is done one after the other, in order of time.
type World struct {
	mu sync.Mutex
	// Guarded by mu, all that follows.
	queue dues
	seq   uint64
	speed Speed
	// Time was baseNs at anchor, and has gone on by speed since.
	baseNs int64
	anchor time.Time
	// With Max, time stops here.
	untilNs int64
	// Time of what is being done.
	atNs int64
	// Closed when time comes to untilNs, or the speed changes; nil: it has.
	there chan struct{}

	wake chan struct{}
}

// due is something that is to happen.
type due struct {
	atNs int64
	seq  uint64
	do   func()
}

// dues is a heap by time, then by who came first.
type dues []due

func (q dues) Len() int { return len(q) }
func (q dues) Less(i, j int) bool {
	if q[i].atNs != q[j].atNs {
		return q[i].atNs < q[j].atNs
	}
	return q[i].seq < q[j].seq
}
func (q dues) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *dues) Push(x any)   { *q = append(*q, x.(due)) }
func (q *dues) Pop() any {
	last := len(*q) - 1
	d := (*q)[last]
	(*q)[last] = due{}
	*q = (*q)[:last]
	return d
}

// NewWorld is a world at time 0.
func NewWorld(speed Speed) *World {
	return &World{speed: speed, anchor: time.Now(), untilNs: math.MaxInt64, wake: make(chan struct{}, 1)}
}

// NowNs is the time.
func (w *World) NowNs() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now()
}

// now is NowNs for who holds mu.
func (w *World) now() int64 {
	if w.speed.Max || w.speed.Factor == 0 {
		return w.baseNs
	}
	return w.baseNs + int64(float64(time.Since(w.anchor))*w.speed.Factor)
}

// Speed says how time goes.
func (w *World) Speed() Speed {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.speed
}

// SetSpeed has time go on like that from now on.
func (w *World) SetSpeed(s Speed) { w.set(s, math.MaxInt64) }

// set lets time go on like that for so long. What it returns is closed when time
// is there, or goes on otherwise.
func (w *World) set(s Speed, ns int64) (there <-chan struct{}) {
	w.mu.Lock()
	defer w.stir()
	defer w.mu.Unlock()
	w.baseNs, w.anchor = w.now(), time.Now()
	w.speed, w.untilNs = s, w.baseNs+min(ns, math.MaxInt64-w.baseNs)
	if w.there != nil {
		close(w.there)
	}
	w.there = make(chan struct{})
	return w.there
}

// Pass lets so much time pass, as fast as can be, and then has it stand still.
// It returns when that is done, ctx ends, or somebody says otherwise.
func (w *World) Pass(ctx context.Context, d time.Duration) error {
	select {
	case <-w.set(Speed{Max: true}, int64(max(d, 0))):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *World) stir() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Do does something in the world, now.
func (w *World) Do(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.catchUp(w.now())
	next := w.nextNs()
	f()
	// Whoever waits for what is due next need not be woken for what is due later.
	if w.speed.Max || w.nextNs() != next {
		w.stir()
	}
}

// nextNs is when something is due next.
func (w *World) nextNs() int64 {
	if len(w.queue) == 0 {
		return math.MaxInt64
	}
	return w.queue[0].atNs
}

// AtNs is the time of what is being done. It is for what is done in the world.
func (w *World) AtNs() int64 { return w.atNs }

// look looks at what is in the world and changes nothing.
func (w *World) look(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// After does something later. It is for what is done in the world.
func (w *World) After(ns int64, do func()) {
	w.seq++
	heap.Push(&w.queue, due{w.atNs + max(ns, 0), w.seq, do})
}

// catchUp does what is due. The caller holds mu.
func (w *World) catchUp(nowNs int64) {
	for len(w.queue) > 0 && w.queue[0].atNs <= nowNs {
		d := heap.Pop(&w.queue).(due)
		w.atNs = max(w.atNs, d.atNs)
		d.do()
	}
	w.atNs = max(w.atNs, nowNs)
}

// Run lets time pass until ctx ends, as it goes outside or so many times as fast.
func (w *World) Run(ctx context.Context) {
	w.run(ctx, func() bool { return true }, func(context.Context) {})
}

// run lets time pass until ctx ends. atRest tells whether all that has happened
// has had its consequences; tell tells the cell that time has passed.
func (w *World) run(ctx context.Context, atRest func() bool, tell func(context.Context)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	told := time.Now()
	for {
		leapt, wait := w.goOn(atRest)
		if leapt || w.Speed().Factor > 1 && time.Since(told) >= tellEvery {
			told = time.Now()
			tell(ctx)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
	}
}

// goOn does what is due and says how long nothing will be, unless somebody stirs.
func (w *World) goOn(atRest func() bool) (leapt bool, wait time.Duration) {
	rest := atRest()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.speed.Max && !rest:
		return false, restEvery
	case w.speed.Max && w.baseNs >= w.untilNs:
		w.speed = Speed{}
		if w.there != nil {
			close(w.there)
			w.there = nil
		}
		return false, time.Hour
	case w.speed.Max:
		next := w.baseNs + maxLeapNs
		if len(w.queue) > 0 {
			next = min(next, max(w.queue[0].atNs, w.baseNs)+leapGrainNs)
		}
		next = min(next, w.untilNs)
		w.baseNs = next
		w.catchUp(next)
		return true, restEvery
	}
	w.catchUp(w.now())
	wait = time.Hour
	if w.speed.Factor > 1 {
		wait = tellEvery
	}
	if w.speed.Factor > 0 && len(w.queue) > 0 {
		ahead := float64(w.queue[0].atNs-w.now()) / w.speed.Factor
		wait = min(wait, max(time.Duration(min(ahead, float64(time.Hour))), time.Microsecond))
	}
	return false, wait
}

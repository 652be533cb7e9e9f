package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"borg/borgmaster/selector"
	"borg/borgmaster/watch"
	"borg/history/told"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// How often a watch that has nothing to tell says so.
	bookmarkNs = 200 * millisecond
	// A watcher that hears nothing for so long asks another replica.
	watcherPatienceNs = 4 * second
)

// watcher is a client that watches, at one replica after another, and stalls. What it
// is told is held against the cell as it was: S13.
type watcher struct {
	w     *World
	i     int
	rand  *rand.Rand
	query watch.Query
	check *told.Watcher
	// It has to be told the state first.
	blank bool
	// The replica that it asks, and counts those asked; what an earlier one still
	// sends is not listened to.
	at     *replicaNode
	asked  int
	call   *call
	heard  int64
	slowed bool
	// It waits for the first that comes behind what it was told.
	resumes bool
	// Elections when it was told something last.
	elections int
	// The user as whom it watches, and what that user could read when it was told the state
	// last; empty: one who reads everything.
	reader  string
	reading reading
}

// session is a watch at a replica: one message is under way at a time.
type session struct {
	x     *watcher
	asked int
	r     *replicaNode
	life  uint64
	watch *watch.Watch
	busy  bool
	ended bool
}

// drawWatchers draws who watches, from a stream of its own.
func (w *World) drawWatchers() {
	r := stream(w.cfg.Seed, "watchers")
	if s := &w.swarm; w.cfg.Aim == "" && r.IntN(4) == 0 && s.checkpointNs == 0 && s.giantTasks == 0 {
		s.watchers = 4
	}
	if w.swarm.watchers == 0 {
		return
	}
	w.past = told.NewPast()
	for i := range w.swarm.watchers {
		x := &watcher{w: w, i: i, rand: stream(w.cfg.Seed, fmt.Sprint("watcher ", i)), blank: true}
		x.query = watch.Query{Kind: watch.Kinds[i%len(watch.Kinds)]}
		if kind := x.query.Kind; kind == borgpb.ObjectKind_OBJECT_KIND_MACHINE {
			x.query.Selector, _ = selector.Parse([]string{"", "arch", "!" + shelfAttribute}[x.rand.IntN(3)])
		} else if x.rand.IntN(2) == 0 {
			x.query.User = userOf(x.rand.IntN(3))
		}
		x.check = w.past.Watcher(x.query)
		if w.swarm.private {
			x.asReader(userOf(i / len(watch.Kinds)))
		}
		w.watchers = append(w.watchers, x)
	}
}

// hubConfig is little, so that a replica forgets soon.
func (w *World) hubConfig(r *replicaNode) watch.Config {
	c := watch.Config{QueueChanges: 3 + r.rand.IntN(20), MessageChanges: 1 + r.rand.IntN(8)}
	switch r.rand.IntN(4) {
	case 0:
		c.KeepNs = 100 * millisecond
	case 1:
		c.Changes = 40
	}
	return c
}

// hubCheckEvery is the number of entries between looks at all of a hub, which cost
// each of the five replicas as much as the rendering of its cell.
const hubCheckEvery = 100

// watched feeds the hub, and holds it against the cell now and then.
func (m *masterSide) watched() {
	if m.hub == nil {
		return
	}
	m.hub.Applied(m.r.cell)
	if m.r.cell.Index()%hubCheckEvery == 0 {
		if err := m.hub.Check(m.r.cell); err != nil {
			m.r.w.fail("S13: the watches of replica %d at index %d: %v", m.r.id, m.r.cell.Index(), err)
		}
	}
}

func (x *watcher) end() int { return clientEnd(1000 + x.i) }

func (x *watcher) begin() {
	x.w.after(between(x.rand, 0, 500*millisecond), x.ask)
}

// ask asks a replica to tell what x was not told yet.
func (x *watcher) ask() {
	if x.call != nil {
		x.call.ended = true
	}
	x.asked++
	x.at, x.heard = x.w.replicas[x.rand.IntN(len(x.w.replicas))], x.w.now
	x.check.Again()
	s := &session{x: x, asked: x.asked, r: x.at}
	var from *watch.From
	if x.resumes = !x.blank; x.resumes {
		from = &watch.From{Index: x.check.Told(), Epoch: 1}
	}
	x.call = x.w.ask(x.end(), s.r, func() {
		s.life = s.r.life
		s.r.read(func() { s.open(from) })
	}, func() { x.again(s.asked, between(x.rand, 20*millisecond, 500*millisecond)) })
	x.w.after(watcherPatienceNs, func() { x.patience(s.asked) })
}

// patience asks another replica when this one says nothing.
func (x *watcher) patience(asked int) {
	if asked != x.asked {
		return
	}
	if x.w.now-x.heard >= watcherPatienceNs && !x.slowed {
		x.again(asked, 0)
		return
	}
	x.w.after(watcherPatienceNs/2, func() { x.patience(asked) })
}

func (x *watcher) again(asked int, waitNs int64) {
	if asked == x.asked {
		x.asked++
		x.w.after(waitNs, x.ask)
	}
}

// open begins the watch at the replica.
func (s *session) open(from *watch.From) {
	if s.asked != s.x.asked {
		return
	}
	var err error
	query := s.x.query
	query.Look(s.r.cell)
	s.watch, err = s.r.master.hub.Watch(query, from, func() { s.soon() })
	if err != nil {
		s.fail(err)
		return
	}
	s.bookmarks()
	s.pump()
}

func (s *session) soon() { s.r.w.after(0, func() { s.r.enter(s.life, s.pump) }) }

// bookmarks says now and then that there is nothing, and ends a watch whose client
// went away.
func (s *session) bookmarks() {
	s.r.w.after(bookmarkNs, func() {
		s.r.enter(s.life, func() {
			if s.ended {
				return
			}
			if s.asked != s.x.asked {
				s.ended = true
				s.r.master.hub.Leave(s.watch)
				return
			}
			if !s.busy {
				if m := s.watch.Bookmark(); m != nil {
					s.send(m)
				}
			}
			s.bookmarks()
		})
	})
}

func (s *session) pump() {
	for !s.busy && !s.ended {
		m, again, err := s.watch.Next()
		switch {
		case err != nil:
			s.fail(err)
		case m != nil:
			s.send(m)
		case !again:
			return
		}
	}
}

func (s *session) send(m *watch.Message) {
	s.busy = true
	resp := m.Proto()
	s.r.w.carry(replicaEnd(s.r.id), s.x.end(), func() {
		if s.asked != s.x.asked {
			return
		}
		s.x.take(resp)
		s.x.heard = s.x.w.now
		done := func() {
			s.x.slowed, s.x.heard = false, s.x.w.now
			s.x.w.carry(s.x.end(), replicaEnd(s.r.id), func() {
				s.r.enter(s.life, func() {
					s.busy = false
					s.pump()
				})
			})
		}
		switch {
		case s.x.w.healed || !chance(s.x.rand, 60):
			done()
		case s.x.rand.IntN(2) == 0:
			// It goes away and comes back.
			s.x.again(s.asked, between(s.x.rand, 0, 300*millisecond))
		default:
			s.x.slowed = true
			s.x.w.after(between(s.x.rand, 50*millisecond, 2*second), done)
		}
	})
}

// fail tells the watcher why its watch has ended.
func (s *session) fail(err error) {
	s.ended = true
	s.r.w.carry(replicaEnd(s.r.id), s.x.end(), func() {
		x := s.x
		if s.asked != x.asked {
			return
		}
		var relist *watch.RelistError
		var cut *watch.CutOffError
		switch {
		case errors.As(err, &relist):
			x.w.mark("watch told to relist")
			x.blank = true
		case errors.As(err, &cut):
			x.w.mark("watch cut off")
			// Between what it was told and there may be what is not for it.
			if cut.Resume > x.check.Told() && !x.blank {
				if err := x.check.Bookmark(cut.Resume); err != nil {
					x.w.fail("S13: watcher %d is to go on from index %d: %w", x.i, cut.Resume, err)
				}
			}
		default:
			x.w.fail("S13: watcher %d at replica %d: %v", x.i, s.r.id, err)
		}
		x.again(s.asked, between(x.rand, 0, 50*millisecond))
	})
}

// take holds what it is told against the cell.
func (x *watcher) take(m *borgrpc.WatchResponse) {
	if x.reader != "" {
		x.judge(m)
	}
	err := x.check.Take(m)
	if m.State && !m.More {
		x.blank = false
	}
	if err != nil {
		x.w.fail("S13: watcher %d of %v at replica %d: %w", x.i, x.query.Kind, x.at.id, err)
	}
	if x.resumes {
		x.resumes = false
		x.w.mark("watch resumed")
		if x.elections != 0 && x.elections != x.w.result.Elections {
			x.w.mark("watch resumed across an election")
		}
	}
	x.elections = x.w.result.Elections
}

package sim

import (
	"math/rand/v2"

	"borg/borgmaster/admission"
)

const (
	// The processors of a replica's host, and how many of them there are for reads that look
	// at much. Such a read keeps one busy for so long.
	processors, readPlaces = 2, 1
	listNs                 = 8 * millisecond
	// A user who has so many lists under way at each replica, without end.
	listsAtOnce = 32
	listerUser  = "lister"
	// And one who lists now and then. He has his answer within the time of a list that is under
	// way, one of the other's, and his own; and of the ways to and fro.
	readerUser    = "reader"
	readerFromNs  = floodFromNs + 2*second
	readerEveryNs = 250 * millisecond
	listWithinNs  = 3*listNs + 4*millisecond
	// Numbers of who asks, as ends of the network.
	listerClient, readerClient = 9_400, 9_401
)

// turn is a list on its way to a processor; it is told once whether it has it.
type turn = admission.Turn[func(error)]

// list does a list here when its turn has come, as borgmaster does.
func (m *masterSide) list(user string, done func(error)) {
	var t *turn
	told := false
	begin := func(err error) {
		if told = true; err != nil {
			done(err)
			return
		}
		m.reading++
		m.r.after(m.shared(listNs, m.reading), func() {
			m.reading--
			if next := m.turns.Leave(t); next != nil {
				next.Who(nil)
			}
			done(nil)
		})
	}
	t, refused := m.turns.Enter(user, begin)
	switch {
	case refused != nil:
		begin(errTooMuch{refused})
	case t.Placed():
		begin(nil)
	default:
		m.r.after(admission.ReadWaitNs, func() {
			if !told {
				begin(errTooMuch{m.turns.Late(t)})
			}
		})
	}
}

// shared is how long something takes that keeps a processor busy for so long by itself, where
// so many want one.
func (m *masterSide) shared(ns int64, wanted int) int64 {
	return ns * int64(max(wanted, processors)) / processors
}

// lists has one user list without end, and another one now and then.
func (w *World) lists() {
	if !w.swarm.lists {
		return
	}
	r := stream(w.cfg.Seed, "lists")
	for _, x := range w.replicas {
		for range listsAtOnce {
			w.at(floodFromNs, func() { w.goOnListing(r, x) })
		}
	}
	var look func()
	look = func() {
		if w.healed {
			return
		}
		since := w.now
		w.askForList(w.replicas[r.IntN(len(w.replicas))], readerUser, readerClient, func(err error) { w.listed(since, err) })
		w.after(readerEveryNs, look)
	}
	w.at(readerFromNs, look)
}

func (w *World) goOnListing(r *rand.Rand, x *replicaNode) {
	if w.healed {
		return
	}
	w.askForList(x, listerUser, listerClient, func(err error) {
		w.after(toldToWait(err), func() { w.goOnListing(r, x) })
	})
}

func (w *World) askForList(x *replicaNode, user string, client int, done func(error)) {
	from := asUser(user, clock{}.wallNs(0))
	w.carry(clientEnd(client), replicaEnd(x.id), func() {
		x.arrive(func() {
			if err := x.master.enter("/borgrpc.MasterService/ListTasks", from); err != nil {
				w.fail("%s may not list: %v", user, err)
				return
			}
			x.master.list(user, func(err error) {
				w.carry(replicaEnd(x.id), clientEnd(client), func() { done(err) })
			})
		})
	})
}

// listed: L8, who lists now and then has his turn soon beside one who lists without end.
func (w *World) listed(sinceNs int64, err error) {
	if err != nil {
		w.fail("L8: who lists now and then is asked to come back: %v", err)
	}
	if took := w.now - sinceNs; took > listWithinNs {
		w.fail("L8: who lists now and then has his answer after %d ms", took/millisecond)
	}
	w.mark("listed beside many lists")
}

package sim

import (
	"fmt"
	"math/rand/v2"

	"borg/proto/borgpb"
)

// A crowd is users who each have several changes under way, and ask for the next when
// they have one. One who asks for little comes to it, and in the end asks for as much.
const (
	// Together that is more than the window has places to begin with: some wait.
	crowdUsers, crowdEach = 64, 8
	littleUser            = "little"
	littleEveryNs         = 50 * millisecond
	// So much he asks for at a time in the end.
	littleThen = 16
	// The clients have ended before the crowd comes. It has its pace when the window has found
	// its size.
	clientsUntilNs = 3500 * millisecond
	crowdFromNs    = 4 * second
	crowdPaceNs    = crowdFromNs + 1500*millisecond
	littleFromNs   = 7 * second
	littleUntilNs  = 9 * second
	// What had its turn while he asked for little is through by then.
	turnsOverNs = 100 * millisecond
	// What the crowd gets done is counted for so long.
	crowdCountNs = 500 * millisecond
	// Within so long all of a crowd is done once, if all of it that is there goes into each
	// entry: two entries, as what is answered when one is begun goes with the next.
	crowdRoundNs = 85 * millisecond
	// Numbers of who asks, as ends of the network.
	littleClient, crowdClient = 9_100, 9_101
)

// crowded has a crowd ask, and who asks for little beside it.
func (w *World) crowded() {
	if !w.swarm.crowd {
		return
	}
	r := stream(w.cfg.Seed, "crowd")
	for i := range crowdUsers * crowdEach {
		w.at(crowdFromNs, func() { w.goOnAsking(r, fmt.Sprint("crowd-", i%crowdUsers), crowdClient+i%crowdUsers) })
	}
	for at := crowdPaceNs; at+crowdCountNs <= littleFromNs; at += crowdCountNs {
		w.countCrowd(at, "alone")
	}
	for at := littleFromNs; at < littleUntilNs; at += littleEveryNs {
		w.at(at, func() {
			since := w.now
			w.askNothing(r, littleUser, littleClient, func(err error) { w.beside("what "+littleUser+" asks", since, err) })
		})
	}
	w.at(littleUntilNs, func() {
		if x := w.leader(); x != nil && x.master.admission.Stats().Window < crowdUsers*crowdEach/4 {
			w.mark("window small beside a crowd")
		}
		for range littleThen {
			w.goOnAsking(r, littleUser, littleClient)
		}
	})
	w.countCrowd(littleUntilNs+turnsOverNs, "with nobody beside it any more")
}

// goOnAsking asks for one thing after the other, and comes back when it was told to.
func (w *World) goOnAsking(r *rand.Rand, user string, client int) {
	if w.healed {
		return
	}
	w.askNothing(r, user, client, func(err error) {
		if err == nil {
			w.crowd.done++
		}
		w.after(toldToWait(err), func() { w.goOnAsking(r, user, client) })
	})
}

// askNothing asks for a change that changes nothing.
func (w *World) askNothing(r *rand.Rand, user string, client int, done func(error)) {
	w.crowd.asked++
	w.askAny(r, asUser(user, clock{}.wallNs(0)), client, &borgpb.Op{
		RequestId: fmt.Sprintf("crowd-%06d", w.crowd.asked), RequestWallNs: w.wallNs(),
		Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: "none"}},
	}, done)
}

// askAny asks whichever replica for a change, and waits for the answer for a while.
func (w *World) askAny(r *rand.Rand, from caller, client int, op *borgpb.Op, done func(error)) {
	w.truth.asked[op.RequestId] = asking{caller: from, atNs: w.now}
	to := w.replicas[r.IntN(len(w.replicas))]
	var asked *call
	end := func(err error) {
		if !asked.ended {
			asked.ended = true
			done(err)
		}
	}
	w.after(floodWaitNs, func() { end(errTimeout) })
	asked = w.ask(clientEnd(client), to, func() {
		to.master.mutate(from, op, false, w.now+floodWaitNs, func(_ *borgpb.Result, err error) {
			w.carry(replicaEnd(to.id), clientEnd(client), func() { end(err) })
		})
	}, func() { end(errBroken) })
}

// crowdCount is what a crowd has asked, and what of that was done.
type crowdCount struct{ asked, done int }

// countCrowd counts what the crowd gets done from a time on.
func (w *World) countCrowd(fromNs int64, how string) {
	before := 0
	w.at(fromNs, func() { before = w.crowd.done })
	w.at(fromNs+crowdCountNs, func() { w.crowdGot(how, w.crowd.done-before) })
}

// crowdGot: L8, a crowd of which each asks for much is not kept from what the log does: of
// that it gets seven tenths.
func (w *World) crowdGot(how string, n int) {
	const does = crowdUsers * crowdEach * crowdCountNs / crowdRoundNs
	if least := int(does * 7 / 10); n < least {
		w.fail("L8: a crowd %s gets %d changes done in %d ms, want %d at least", how, n, crowdCountNs/millisecond, least)
	}
	w.say("a crowd %s gets %d changes done in %d ms", how, n, crowdCountNs/millisecond)
	w.mark("crowd goes on")
}

// waitsForCrowd is how long clients have nothing to ask for, as a crowd is to be alone.
func (w *World) waitsForCrowd() int64 {
	if !w.swarm.crowd || w.healed || w.now < clientsUntilNs {
		return 0
	}
	return second
}

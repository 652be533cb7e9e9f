package roster

import (
	"fmt"
	"slices"
	"strings"
)

// Replica is one replica as the elected one sees it.
type Replica struct {
	ID   uint64
	Addr string
	// Learner: it does not vote yet.
	Learner bool
	Elected bool
	// Heard: it said something lately.
	Heard bool
	// Current: it counts in a majority, as it is heard and has caught up.
	Current bool
	// Entries that it lacks.
	Behind uint64
}

// Roster is who the replicas of a cell are.
type Roster struct {
	Replicas []Replica
	// Numbers that were taken out, and one that was never given.
	Removed []uint64
	NextID  uint64
}

// Goal is who is to go, by number, and where a replica is to vote, by address.
type Goal struct {
	Out []uint64
	In  []string
}

// Kind is what kind of thing is to be done.
type Kind int

// What there is to do.
const (
	// Done: all is as it was asked for.
	Done Kind = iota
	// Wait: somebody else has to do something, or a replica to catch up.
	Wait
	// Join: somebody has to start a replica at Addr, with the number ID.
	Join
	// Transfer: have replica ID elected.
	Transfer
	// Remove: take replica ID out.
	Remove
)

// Step is the next thing to do.
type Step struct {
	Kind Kind
	ID   uint64
	Addr string
	// Why says for whom or what it is, in a few words.
	Why string
}

// Refused is a goal that cannot be come to as things are. Nothing was changed
// for it.
type Refused struct {
	What string
	// Next is what to do about it; empty: nothing that we know of.
	Next string
	// Addr is where a replica is to be started first, with the number ID; empty:
	// nowhere.
	Addr string
	ID   uint64
	// Missing: the goal names a replica that never was.
	Missing bool
}

func (r *Refused) Error() string { return r.What }

func refuse(next, format string, args ...any) error {
	return &Refused{What: fmt.Sprintf(format, args...), Next: next}
}

// Voters are those that vote.
func (r Roster) Voters() (voters []Replica) {
	for _, x := range r.Replicas {
		if !x.Learner {
			voters = append(voters, x)
		}
	}
	return voters
}

func (r Roster) byID(id uint64) (Replica, bool) {
	i := slices.IndexFunc(r.Replicas, func(x Replica) bool { return x.ID == id })
	if i < 0 {
		return Replica{}, false
	}
	return r.Replicas[i], true
}

func (r Roster) byAddr(addr string) (Replica, bool) {
	i := slices.IndexFunc(r.Replicas, func(x Replica) bool { return x.Addr == addr })
	if i < 0 {
		return Replica{}, false
	}
	return r.Replicas[i], true
}

// Majority of so many voters.
func Majority(voters int) int { return voters/2 + 1 }

// count counts voters that are current, and names those that are not.
func count(voters []Replica) (current int, missing []string) {
	for _, x := range voters {
		if x.Current {
			current++
		} else {
			missing = append(missing, fmt.Sprint(x.ID))
		}
	}
	return current, missing
}

// Check says, before anything is changed, why the goal cannot be come to.
func (g Goal) Check(r Roster) error {
	gone := 0
	for _, id := range g.Out {
		if _, ok := r.byID(id); ok {
			continue
		}
		if !slices.Contains(r.Removed, id) {
			return &Refused{What: fmt.Sprintf("there is no replica %d in this cell, and never was", id), Next: "see who there is: borgcfg master list", Missing: true}
		}
		gone++
	}
	for _, addr := range g.In {
		if err := g.checkAddr(r, addr, gone); err != nil {
			return err
		}
	}
	return g.checkVoters(r)
}

// checkAddr wants a replica at addr that has joined and is heard, unless it is the
// place of one that goes first.
func (g Goal) checkAddr(r Roster, addr string, gone int) error {
	x, ok := r.byAddr(addr)
	switch {
	case !ok && len(g.Out) > 0 && gone == len(g.Out):
		// Half done: one that was at this address, or died meanwhile, is out.
		return nil
	case !ok:
		return &Refused{What: fmt.Sprintf("no replica of this cell has joined at %s", addr), Addr: addr, ID: r.NextID}
	case slices.Contains(g.Out, x.ID) && x.Heard:
		return refuse(fmt.Sprintf("stop it first, or name another address for the new one, such as another port of %s", addr), "replica %d is to go, still answers at %s, and no other can join there", x.ID, addr)
	case slices.Contains(g.Out, x.ID):
		return nil
	case !x.Heard:
		return refuse("is it started, and does the address lead to it? what does its log say?", "replica %d joined as %s, and the elected master does not hear it", x.ID, addr)
	}
	return nil
}

// end is who votes when the goal is reached.
func (g Goal) end(r Roster) (end []Replica) {
	for _, x := range r.Replicas {
		in := slices.Contains(g.In, x.Addr)
		if (!x.Learner || in) && !slices.Contains(g.Out, x.ID) {
			// Who comes in has caught up before anybody goes.
			x.Current = x.Current || in
			end = append(end, x)
		}
	}
	for _, addr := range g.In {
		if x, ok := r.byAddr(addr); !ok || slices.Contains(g.Out, x.ID) {
			// Comes when its place is free.
			end = append(end, Replica{ID: r.NextID, Addr: addr, Current: true})
		}
	}
	return end
}

// Wastes reports whether the goal takes voters out and leaves an even number of them. These lose no
// more masters than one fewer would. On the way to a goal the number may be even.
func (g Goal) Wastes(r Roster) (left int, wastes bool) {
	left = len(g.end(r))
	return left, left > 0 && left%2 == 0 && left < len(r.Voters())
}

// checkVoters wants a majority with some to spare in the end, and one at each step.
func (g Goal) checkVoters(r Roster) error {
	was, missingNow := count(r.Voters())
	sparedNow := was - Majority(len(r.Voters()))
	end := g.end(r)
	if len(end) == 0 {
		return refuse("", "nobody would be left that votes")
	}
	n, missing := count(end)
	spared := n - Majority(len(end))
	switch names := strings.Join(missing, ", "); {
	case spared < 0:
		return refuse("bring them back first, or take them out instead", "of the %d masters that there would be only %d are there and have caught up, and a majority is %d; missing: %s", len(end), n, Majority(len(end)), names)
	case spared == 0 && sparedNow > 0 && len(missing) > 0:
		return refuse("bring them back first, or take them out instead", "the cell would stand no further loss: of the %d masters that there would be %d are missing (%s)", len(end), len(missing), names)
	}
	if len(missingNow) == 0 {
		return nil
	}
	// One that goes first, because the new one takes its address.
	for _, addr := range g.In {
		if x, ok := r.byAddr(addr); ok && slices.Contains(g.Out, x.ID) {
			if err := mayGo(r, x); err != nil {
				return err
			}
		}
	}
	return nil
}

// mayGo refuses to take out a voter without which there would be no majority.
func mayGo(r Roster, out Replica) error {
	if out.Learner {
		return nil
	}
	left := slices.DeleteFunc(r.Voters(), func(x Replica) bool { return x.ID == out.ID })
	n, missing := count(left)
	if n < Majority(len(left)) {
		return refuse("bring them back first", "without replica %d there are %d masters, of which %d are there and have caught up, and a majority is %d; missing: %s", out.ID, len(left), n, Majority(len(left)), strings.Join(missing, ", "))
	}
	return nil
}

// Next is the next thing to do.
func (g Goal) Next(r Roster) (Step, error) {
	if step, ok := g.comeIn(r); ok {
		if step.Kind != Remove {
			return step, nil
		}
		x, _ := r.byID(step.ID)
		return step, mayGo(r, x)
	}
	for _, id := range g.Out {
		x, ok := r.byID(id)
		if !ok {
			continue
		}
		if x.Elected {
			return g.handOver(r, x)
		}
		if err := mayGo(r, x); err != nil {
			return Step{}, err
		}
		return Step{Kind: Remove, ID: id, Addr: x.Addr, Why: "all that come in vote"}, nil
	}
	return Step{Kind: Done}, nil
}

// comeIn is what is next until all that come in vote; false: they do.
func (g Goal) comeIn(r Roster) (Step, bool) {
	for _, addr := range g.In {
		x, ok := r.byAddr(addr)
		switch {
		case !ok:
			return Step{Kind: Join, ID: r.NextID, Addr: addr, Why: "a replica has to join at " + addr}, true
		case slices.Contains(g.Out, x.ID):
			return Step{Kind: Remove, ID: x.ID, Addr: addr, Why: "its address is that of the new one"}, true
		case x.Learner && !x.Heard:
			return Step{Kind: Wait, ID: x.ID, Addr: addr, Why: fmt.Sprintf("replica %d at %s is not heard; is it running?", x.ID, addr)}, true
		case x.Learner && !x.Current:
			return Step{Kind: Wait, ID: x.ID, Addr: addr, Why: fmt.Sprintf("replica %d is sent the cell; entries behind: %d", x.ID, x.Behind)}, true
		case x.Learner:
			return Step{Kind: Wait, ID: x.ID, Addr: addr, Why: fmt.Sprintf("replica %d has caught up and is given its vote", x.ID)}, true
		}
	}
	return Step{}, false
}

// handOver has another one elected, who stays, before the elected one goes.
func (g Goal) handOver(r Roster, from Replica) (Step, error) {
	for _, x := range r.Voters() {
		if x.Current && x.ID != from.ID && !slices.Contains(g.Out, x.ID) {
			return Step{Kind: Transfer, ID: x.ID, Addr: x.Addr, Why: fmt.Sprintf("replica %d is elected and goes", from.ID)}, nil
		}
	}
	return Step{}, refuse("bring one back first, or see: borgcfg master list", "replica %d is elected and is to go, and no other that votes is there and has caught up", from.ID)
}

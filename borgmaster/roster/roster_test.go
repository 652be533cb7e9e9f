package roster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// draw reads a roster of words such as "1*", "2", "3-", "4~" (elected, well, not
// heard, behind) and "L5" (a learner). Replica n is at host-n.
func draw(words string) Roster {
	r := Roster{NextID: 1}
	for word := range strings.FieldsSeq(words) {
		var x Replica
		word, x.Learner = strings.CutPrefix(word, "L")
		x.Heard, x.Current = true, true
		switch {
		case strings.HasSuffix(word, "*"):
			x.Elected = true
		case strings.HasSuffix(word, "-"):
			x.Heard, x.Current = false, false
		case strings.HasSuffix(word, "~"):
			x.Current, x.Behind = false, 1000
		}
		fmt.Sscan(strings.TrimRight(word, "*-~"), &x.ID)
		x.Addr = fmt.Sprint("host-", x.ID)
		r.Replicas = append(r.Replicas, x)
		r.NextID = max(r.NextID, x.ID+1)
	}
	return r
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		is   string
		goal Goal
		says string
	}{
		{"1* 2 3", Goal{Out: []uint64{7}}, "there is no replica 7"},
		{"1* 2 3", Goal{Out: []uint64{3}, In: []string{"host-6"}}, "no replica of this cell has joined at host-6"},
		{"1* 2 3", Goal{In: []string{"host-6"}}, "no replica of this cell has joined at host-6"},
		{"1* 2 3 L6-", Goal{Out: []uint64{3}, In: []string{"host-6"}}, "the elected master does not hear it"},
		{"1* 2 3", Goal{Out: []uint64{3}, In: []string{"host-3"}}, "still answers at host-3"},
		{"1*", Goal{Out: []uint64{1}}, "nobody would be left"},
		{"1* 2 3-", Goal{Out: []uint64{2}}, "of the 2 masters that there would be only 1 are there"},
		{"1* 2 3 4- 5-", Goal{Out: []uint64{2}}, "of the 4 masters that there would be only 2 are there"},
		{"1* 2 3 4- 5", Goal{Out: []uint64{2, 3}}, "the cell would stand no further loss"},
		{"1* 2 3 4~ 5", Goal{Out: []uint64{2, 3}}, "the cell would stand no further loss"},
	} {
		r := draw(c.is)
		if err := c.goal.Check(r); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s to %+v: %v, want %q", c.is, c.goal, err, c.says)
		}
	}
}

// TestWastes: an even number of masters that is left is one too many; what is half done may pass one.
func TestWastes(t *testing.T) {
	for _, c := range []struct {
		is   string
		goal Goal
		want bool
	}{
		{"1* 2 3 4 5", Goal{Out: []uint64{5}}, true},
		{"1* 2 3 4 5", Goal{Out: []uint64{4, 5}}, false},
		{"1* 2 3 4", Goal{Out: []uint64{4, 5}}, false}, // 5 is out already.
		{"1* 2 3", Goal{Out: []uint64{3}}, true},
		{"1* 2", Goal{Out: []uint64{2}}, false},
		{"1* 2 3", Goal{Out: []uint64{3}, In: []string{"host-4"}}, false},
		{"1* 2 3 L4", Goal{In: []string{"host-4"}}, false},
		{"1* 2 3 L4", Goal{Out: []uint64{4}}, false},
	} {
		if left, got := c.goal.Wastes(draw(c.is)); got != c.want {
			t.Errorf("%s to %+v leaves %d: wastes %v, want %v", c.is, c.goal, left, got, c.want)
		}
	}
}

func TestSteps(t *testing.T) {
	for _, c := range []struct {
		is   string
		goal Goal
		want string
	}{
		{"1* 2 3- L6~", Goal{Out: []uint64{3}, In: []string{"host-6"}}, "wait: replica 6 is sent the cell; entries behind: 1000"},
		{"1* 2 3- L6", Goal{Out: []uint64{3}, In: []string{"host-6"}}, "wait: replica 6 has caught up and is given its vote"},
		{"1* 2 3- 6", Goal{Out: []uint64{3}, In: []string{"host-6"}}, "remove 3: all that come in vote"},
		{"1* 2 6", Goal{Out: []uint64{3}, In: []string{"host-6"}}, "done"},
		{"1* 2 3 6", Goal{Out: []uint64{1}, In: []string{"host-6"}}, "transfer 2: replica 1 is elected and goes"},
		{"1* 2 3-", Goal{Out: []uint64{3}, In: []string{"host-3"}}, "remove 3: its address is that of the new one"},
		{"1* 2", Goal{Out: []uint64{3}, In: []string{"host-3"}}, "join 4: a replica has to join at host-3"},
		{"1* 2~ 3 4", Goal{Out: []uint64{1, 2}}, "transfer 3: replica 1 is elected and goes"},
		{"1* 2 3", Goal{In: []string{"host-2", "host-3"}}, "done"},
	} {
		r := draw(c.is)
		if _, ok := r.byID(3); !ok {
			r.Removed, r.NextID = []uint64{3}, max(r.NextID, 4)
		}
		if err := c.goal.Check(r); err != nil {
			t.Errorf("%s to %+v: %v", c.is, c.goal, err)
		}
		step, err := c.goal.Next(r)
		if got := words(step); err != nil || got != c.want {
			t.Errorf("%s to %+v: %q, %v, want %q", c.is, c.goal, got, err, c.want)
		}
	}
}

func words(s Step) string {
	switch s.Kind {
	case Done:
		return "done"
	case Wait:
		return "wait: " + s.Why
	case Join:
		return fmt.Sprintf("join %d: %s", s.ID, s.Why)
	case Transfer:
		return fmt.Sprintf("transfer %d: %s", s.ID, s.Why)
	}
	return fmt.Sprintf("remove %d: %s", s.ID, s.Why)
}

// TestWalks goes from random cells to random goals, with replicas that die and come
// back in between: no step takes a majority that is there, and with everybody back
// the goal is come to.
func TestWalks(t *testing.T) {
	came := 0
	for seed := range uint64(5000) {
		if walk(t, rand.New(rand.NewPCG(seed, 1)), seed) {
			came++
		}
	}
	if came < 1000 {
		t.Errorf("%d of 5000 goals were not refused; that says little", came)
	}
}

func walk(t *testing.T, rnd *rand.Rand, seed uint64) bool {
	r := Roster{NextID: 1}
	for range 1 + rnd.IntN(5) {
		up := rnd.IntN(5) > 0
		r.Replicas = append(r.Replicas, Replica{ID: r.NextID, Addr: fmt.Sprint("host-", r.NextID), Heard: up, Current: up && rnd.IntN(8) > 0})
		r.NextID++
	}
	var goal Goal
	for _, x := range r.Replicas {
		if rnd.IntN(4) == 0 {
			goal.Out = append(goal.Out, x.ID)
			if !x.Heard && rnd.IntN(2) == 0 {
				goal.In = append(goal.In, x.Addr)
			}
		}
	}
	for range rnd.IntN(3) {
		addr := fmt.Sprint("host-", r.NextID)
		r.Replicas = append(r.Replicas, Replica{ID: r.NextID, Addr: addr, Learner: true, Heard: true})
		goal.In = append(goal.In, addr)
		r.NextID++
	}
	if !elect(&r) || goal.Check(r) != nil {
		return false
	}
	for n := range 200 {
		if n < 100 {
			trouble(&r, rnd)
		} else {
			for i := range r.Replicas {
				r.Replicas[i].Heard, r.Replicas[i].Current = true, true
			}
		}
		if !elect(&r) {
			// By no hand of ours: nobody can do anything until they are back.
			continue
		}
		step, err := goal.Next(r)
		if err != nil {
			continue
		}
		if step.Kind == Done {
			return reached(t, goal, r, seed)
		}
		do(t, &r, step, seed)
		if current, _ := count(r.Voters()); current < Majority(len(r.Voters())) {
			t.Errorf("seed %d: %s leaves no majority of %+v", seed, words(step), r.Replicas)
			return true
		}
	}
	t.Errorf("seed %d: %+v is never come to from %+v", seed, goal, r.Replicas)
	return true
}

// trouble kills somebody, or brings him back.
func trouble(r *Roster, rnd *rand.Rand) {
	x := &r.Replicas[rnd.IntN(len(r.Replicas))]
	switch rnd.IntN(4) {
	case 0:
		x.Heard, x.Current, x.Elected = false, false, false
	case 1:
		x.Heard, x.Current = true, true
	}
}

// elect has somebody elected if there is a majority, and gives votes to learners
// that have caught up, as the elected master does.
func elect(r *Roster) bool {
	if current, _ := count(r.Voters()); current < Majority(len(r.Voters())) {
		return false
	}
	if !slices.ContainsFunc(r.Replicas, func(x Replica) bool { return x.Elected && x.Current }) {
		for i, x := range r.Replicas {
			r.Replicas[i].Elected = false
			if !x.Learner && x.Current && !slices.ContainsFunc(r.Replicas, func(x Replica) bool { return x.Elected }) {
				r.Replicas[i].Elected = true
			}
		}
	}
	for i, x := range r.Replicas {
		if x.Learner && x.Current {
			r.Replicas[i].Learner = false
			if current, _ := count(r.Voters()); current < Majority(len(r.Voters())) {
				r.Replicas[i].Learner = true
			}
		}
	}
	return true
}

func do(t *testing.T, r *Roster, step Step, seed uint64) {
	switch step.Kind {
	case Join:
		r.Replicas = append(r.Replicas, Replica{ID: step.ID, Addr: step.Addr, Learner: true, Heard: true})
		r.NextID = step.ID + 1
	case Remove:
		r.Replicas = slices.DeleteFunc(r.Replicas, func(x Replica) bool { return x.ID == step.ID })
		r.Removed = append(r.Removed, step.ID)
	case Transfer:
		for i := range r.Replicas {
			r.Replicas[i].Elected = r.Replicas[i].ID == step.ID
			if r.Replicas[i].Elected && (!r.Replicas[i].Current || r.Replicas[i].Learner) {
				t.Errorf("seed %d: %s cannot be elected", seed, words(step))
			}
		}
	}
}

func reached(t *testing.T, goal Goal, r Roster, seed uint64) bool {
	for _, id := range goal.Out {
		if _, ok := r.byID(id); ok {
			t.Errorf("seed %d: done, and replica %d is there", seed, id)
		}
	}
	for _, addr := range goal.In {
		if x, ok := r.byAddr(addr); !ok || x.Learner {
			t.Errorf("seed %d: done, and nobody votes at %s", seed, addr)
		}
	}
	return true
}

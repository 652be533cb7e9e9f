package admission

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestTurnsGoByUser: whoever asks for one thing waits for one of each of the others, however
// many they ask for.
func TestTurnsGoByUser(t *testing.T) {
	x := NewTurns[string](3, 1, 1)
	var has *Turn[string]
	ask := func(user, who string) *Turn[string] {
		t.Helper()
		turn, r := x.Enter(user, who)
		if r != nil {
			t.Fatal(r)
		}
		if turn.Placed() {
			has = turn
		}
		return turn
	}
	for i := range 4 {
		ask("much", fmt.Sprint("much-", i))
	}
	ask("more", "more-0")
	ask("more", "more-1")
	ask("little", "little")
	gone := ask("gone", "gone")
	var order []string
	if x.Leave(gone) != nil {
		t.Error("who waits no more gave a turn away")
	}
	for has != nil {
		order = append(order, has.Who)
		has = x.Leave(has)
	}
	if want := "much-0 much-1 more-0 little much-2 more-1 much-3"; strings.Join(order, " ") != want {
		t.Errorf("they had turns so: %s\nwant: %s", strings.Join(order, " "), want)
	}
	if !ask("little", "again").Placed() {
		t.Error("nobody has a turn, and somebody waits")
	}
}

func TestTurnsAreBounded(t *testing.T) {
	x := NewTurns[int](3, 2, 2)
	var all []*Turn[int]
	for i := range 2 + maxReadingOf {
		turn, r := x.Enter("much", i)
		if r != nil {
			t.Fatal(i, r)
		}
		all = append(all, turn)
	}
	_, r := x.Enter("much", 0)
	if r == nil || r.RetryNs <= 0 || !strings.Contains(r.Error(), `user "much" has 128 calls waiting for their turn at replica 3`) {
		t.Fatalf("one above what a user may have waiting: %v", r)
	}
	for i := maxReadingOf; i < maxReading; i++ {
		if _, r := x.Enter(fmt.Sprint("user-", i), i); r != nil {
			t.Fatal(i, r)
		}
	}
	if _, r := x.Enter("last", 0); r == nil {
		t.Fatal("one above what all may have waiting is let in")
	}
	if r := x.Late(all[5]); r == nil || !strings.Contains(r.Error(), "waited 400 ms at replica 3 for its turn to read, with 1023 others") {
		t.Errorf("one that waited in vain: %v", r)
	}
	if s := x.Stats(); s.Waiting != maxReading-1 || s.Refused != 3 || s.Waited != maxReading {
		t.Errorf("it stands %+v", s)
	}
}

// TestTurnsRandom: so many have their turn as there are places, or all who ask, whoever
// comes and goes.
func TestTurnsRandom(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 7))
		places := 1 + r.IntN(3)
		x := NewTurns[int](1, places, places)
		var all []*Turn[int]
		for range 2_000 {
			if r.IntN(2) == 0 {
				turn, refused := x.Enter(fmt.Sprint("user-", r.IntN(5)), 0)
				if refused != nil {
					t.Fatalf("seed %d: %v", seed, refused)
				}
				all = append(all, turn)
			} else if len(all) > 0 {
				i := r.IntN(len(all))
				if next := x.Leave(all[i]); next != nil && (!next.Placed() || !slices.Contains(all, next)) {
					t.Fatalf("seed %d: a turn of nobody", seed)
				}
				all = slices.Delete(all, i, i+1)
			}
			have := 0
			for _, turn := range all {
				if turn.Placed() {
					have++
				}
			}
			if want := min(places, len(all)); have != want || x.Stats().Waiting != len(all)-have || len(x.users) != len(x.ring) {
				t.Fatalf("seed %d: %d of %d have their turn of %d places; %+v", seed, have, len(all), places, x.Stats())
			}
		}
	}
}

package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"borg/borgmaster/cell"
)

// Lines that are merged into the list are where sorting all would put them.
func TestMergeSorts(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var q queue
		var all []*line
		for range 1 + r.IntN(6) {
			for range r.IntN(30) {
				l := &line{
					uid: cell.UID{Epoch: 1, Index: uint64(len(all)) + 1}, priority: int32(r.IntN(3)),
					key: cell.JobKey{User: fmt.Sprint("user-", r.IntN(4)), Name: "job"},
				}
				all = append(all, l)
				q.enter(l)
			}
			q.merge()
			want := slices.SortedFunc(slices.Values(all), compareLines)
			if !slices.Equal(q.list, want) || len(q.added) != 0 {
				t.Fatalf("seed %d: %d lines of %d are not in order, %d not merged", seed, len(q.list), len(all), len(q.added))
			}
		}
	}
}

// plainTurns is the order of turns with nothing but lists: who has nothing left is taken out at once.
type plainTurns struct {
	users [][]*line
	turns []int
	turn  int
}

func (p *plainTurns) take(left map[*line]int) *line {
	for len(p.users) > 0 {
		p.turn %= len(p.users)
		u := p.turn
		for len(p.users[u]) > 0 {
			p.turns[u] %= len(p.users[u])
			if l := p.users[u][p.turns[u]]; left[l] > 0 {
				return l
			}
			p.users[u] = slices.Delete(p.users[u], p.turns[u], p.turns[u]+1)
		}
		p.users, p.turns = slices.Delete(p.users, u, u+1), slices.Delete(p.turns, u, u+1)
	}
	return nil
}

// TestTurns gives users and jobs turns as simple lists do, whatever is placed and whatever waits on.
func TestTurns(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		var q queue
		left := make(map[*line]int)
		for i := range 1 + r.IntN(60) {
			l := &line{
				uid: cell.UID{Epoch: 1, Index: uint64(i) + 1}, priority: int32(r.IntN(2)),
				key: cell.JobKey{User: fmt.Sprint("user-", r.IntN(1+r.IntN(20))), Name: "job"}, indices: make([]uint32, r.IntN(5)),
			}
			left[l] = len(l.indices)
			q.enter(l)
		}
		q.begin(false)
		var plain plainTurns
		at := 0
		next := func() *line {
			for {
				if l := plain.take(left); l != nil || at == len(q.list) {
					return l
				}
				plain = plainTurns{}
				for first := q.list[at]; at < len(q.list) && q.list[at].priority == first.priority; at++ {
					l := q.list[at]
					if n := len(plain.users); n == 0 || plain.users[n-1][0].key.User != l.key.User {
						plain.users, plain.turns = append(plain.users, nil), append(plain.turns, 0)
					}
					n := len(plain.users) - 1
					plain.users[n] = append(plain.users[n], l)
				}
			}
		}
		for {
			got, want := q.take(), next()
			if got != want {
				t.Fatalf("seed %d: the turn is %+v, want %+v", seed, got, want)
			}
			if got == nil {
				break
			}
			if r.IntN(2) == 0 {
				got.placed()
				q.advance()
				left[got]--
				plain.turns[plain.turn]++
				plain.turn++
				continue
			}
			n := 1 + r.IntN(left[got])
			got.keep(n)
			left[got] -= n
		}
		q.end()
	}
}

package borglet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// turnsWorld asks for slots and gives them back, and says who got one.
type turnsWorld struct {
	t     *testing.T
	turns *Turns
	got   chan string
	back  map[string]func()
}

func newTurnsWorld(t *testing.T, slots, below int) *turnsWorld {
	return &turnsWorld{t: t, turns: NewTurns(slots, below), got: make(chan string, 1000), back: map[string]func(){}}
}

// ask waits for a slot in a goroutine. Who asks later stands behind.
func (w *turnsWorld) ask(ctx context.Context, name string, turn Turn) {
	var giveBack func()
	go func() {
		var err error
		if giveBack, err = w.turns.Take(ctx, turn); err == nil {
			w.back[name] = giveBack
			w.got <- name
		}
	}()
	synctest.Wait()
}

// granted lists who got a slot since the last call.
func (w *turnsWorld) granted() string {
	synctest.Wait()
	var names []string
	for len(w.got) > 0 {
		names = append(names, <-w.got)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func (w *turnsWorld) want(when, want string) {
	w.t.Helper()
	if got := w.granted(); got != want {
		w.t.Errorf("%s: %q got a slot, want %q", when, got, want)
	}
}

func (w *turnsWorld) giveBack(name string) {
	w.t.Helper()
	if w.back[name] == nil {
		w.t.Fatalf("%s has no slot to give back", name)
	}
	w.back[name]()
	delete(w.back, name)
}

// TestTurnsGoByBand: production gets a slot at once beside a thousand free starts, higher bands go
// first, and users of one band take turns.
func TestTurnsGoByBand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTurnsWorld(t, 4, 2)
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 1000 {
			w.ask(ctx, fmt.Sprintf("alice%03d", i), Turn{User: "alice"})
		}
		w.want("a flood of one free user", "alice000 alice001")
		w.ask(ctx, "web0", Turn{User: "bob", Priority: 200})
		w.ask(ctx, "web1", Turn{User: "bob", Priority: 200})
		w.want("production comes", "web0 web1")
		w.ask(ctx, "web2", Turn{User: "bob", Priority: 200})
		w.ask(ctx, "probe", Turn{User: "carol", Priority: 400})
		w.ask(ctx, "stop", Turn{User: "alice", Urgent: true})
		w.ask(ctx, "dave0", Turn{User: "dave"})
		w.ask(ctx, "batch", Turn{User: "erin", Priority: 100})
		w.want("all slots are in use", "")
		w.giveBack("alice000")
		w.want("first what stops something", "stop")
		w.giveBack("stop")
		w.want("then monitoring", "probe")
		w.giveBack("probe")
		w.want("then production", "web2")
		w.giveBack("web0")
		w.want("then batch", "batch")
		w.giveBack("web1")
		w.want("work below production has its share", "")
		w.giveBack("batch")
		w.want("alice asked first", "alice002")
		w.giveBack("alice001")
		w.want("another user of the band has a turn", "dave0")
		w.giveBack("dave0")
		w.want("alice again", "alice003")
		cancel()
		w.want("nobody waits any longer", "")
		w.giveBack("alice002")
		w.giveBack("alice003")
		w.giveBack("web2")
		if w.turns.used != 0 || w.turns.usedBelow != 0 {
			t.Errorf("%d slots are in use, %d of them below production; want none", w.turns.used, w.turns.usedBelow)
		}
		for rank := range w.turns.lines {
			if w.turns.lines[rank].any() || len(w.turns.lines[rank].of) > 0 {
				t.Errorf("rank %d: who gave up still waits: %v", rank, w.turns.lines[rank])
			}
		}
	})
}

// TestStopEndsWaitForStart: a copy that is told to stop while it waits for its turn to start is
// not started, and its stop does not wait for that turn.
func TestStopEndsWaitForStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started, ended := make(chan string, 10), make(chan string, 10)
		release := make(chan struct{})
		x := newExecutor(t.Context(), 2, 8,
			func(context.Context, Record) error { return nil },
			func(e Effect, startErr error) {
				if _, ok := e.(Start); !ok {
					return
				}
				if startErr != nil {
					ended <- e.Copy().JobUID
					return
				}
				started <- e.Copy().JobUID
				<-release
			})
		id := func(uid string) ID { return ID{JobUID: uid, Attempt: 1} }
		for _, uid := range []string{"first", "second", "third"} {
			x.add(Start{Record{ID: id(uid)}}, Turn{User: "alice"})
			synctest.Wait()
		}
		x.add(Save{Record{ID: id("second"), Stop: &StopOrder{}}}, Turn{User: "alice"})
		synctest.Wait()
		if len(started) != 1 || len(ended) != 1 || <-ended != "second" {
			t.Fatalf("%d started and %d ended; want the first to start and the second to end", len(started), len(ended))
		}
		x.add(Start{Record{ID: id("web")}}, Turn{User: "bob", Priority: 200})
		synctest.Wait()
		if <-started; len(started) != 1 || <-started != "web" {
			t.Fatal("a start of production waits for those of others")
		}
		close(release)
		x.wait()
		if len(started) != 1 || <-started != "third" {
			t.Fatal("the third copy did not start in its turn")
		}
	})
}

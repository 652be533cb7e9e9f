package packages

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"borg/borglet"
)

// errWait: no machine that has it could be asked, and it is not this machine's turn to
// ask where packages come from.
var errWait = errors.New("it waits for a machine that has it")

// route is the way of one image to this machine: from machines that have it, else from
// where packages come from, when masters say that it is this machine's turn. A machine
// that hears no word of masters on an image needs none.
type route struct {
	s     *Store
	image Digest
	// sources are where packages come from, as who brings this one.
	sources []Source
	// From then on it needs no turn. It moves on while bytes come.
	patientUntil time.Time
}

func (s *Store) newRoute(image Digest) *route {
	r := &route{s: s, image: image, sources: s.cfg.Sources}
	r.hope()
	return r
}

// logIn has registries shown somebody else for this image, if there is somebody. Other
// images know nothing of it, and it is gone with the route.
func (r *route) logIn(ctx context.Context, login borglet.PackageLogin) error {
	if login == nil {
		return nil
	}
	value, err := login(ctx, string(r.image))
	if err != nil || value == nil {
		return err
	}
	who, err := parseLogin(value)
	if err != nil {
		return err
	}
	r.sources = make([]Source, len(r.s.cfg.Sources))
	for i, source := range r.s.cfg.Sources {
		if registry, is := source.(*registry); is {
			source = registry.as(who)
		}
		r.sources[i] = source
	}
	return nil
}

// hope begins the waiting anew. Not all machines lose patience at the same time: who
// does first becomes one that the others can ask.
func (r *route) hope() {
	h := fnv.New64a()
	fmt.Fprint(h, r.s.cfg.Dir, r.image)
	patience := r.s.cfg.Patience
	r.patientUntil = time.Now().Add(patience + time.Duration(h.Sum64()%uint64(patience+1)))
}

// Advise takes in what masters say of packages that are wanted here, in place of what
// they said before.
func (s *Store) Advise(advice map[string]borglet.PackageAdvice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advice = advice
	close(s.advised)
	s.advised = make(chan struct{})
}

// ways are whom to ask at a moment.
type ways struct {
	// In this order.
	list []Source
	// It may be asked where packages come from.
	origin bool
	// When there may be others without a word of masters.
	again time.Time
	// Closed when masters say something else.
	advised <-chan struct{}
}

func (r *route) now() ways {
	r.s.mu.Lock()
	advice, said := r.s.advice[string(r.image)]
	w := ways{advised: r.s.advised, again: r.patientUntil}
	r.s.mu.Unlock()
	if !said || r.s.cfg.Peers == nil {
		w.list, w.origin = r.sources, true
		return w
	}
	now, lacking := time.Now(), 0
	for _, addr := range advice.Peers {
		at, lacks := r.s.shunned.until(addr, r.image)
		if lacks && now.Before(at) {
			lacking++
		}
		if !now.Before(at) {
			w.list = append(w.list, &peer{addr, r.s.cfg.Peers})
		} else if at.Before(w.again) {
			w.again = at
		}
	}
	// Those that were to have it have thrown away what they got it from.
	none := len(advice.Peers) > 0 && lacking == len(advice.Peers)
	if advice.Origin || none || !now.Before(r.patientUntil) {
		w.origin = true
		w.list = append(w.list, r.sources...)
	}
	return w
}

// await returns when there is somebody to ask.
func (r *route) await(ctx context.Context) error {
	for {
		now := r.now()
		if now.origin || len(now.list) > 0 {
			return nil
		}
		timer := time.NewTimer(time.Until(now.again))
		select {
		case <-now.advised:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

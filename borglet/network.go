package borglet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"borg/mutant"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// networkRetry is the wait before what could not be removed of a network is tried again.
const networkRetry = 5 * time.Second

// Network is one of a copy's own, or of an alloc's.
type Network struct {
	// Space is the path at which its name space is held.
	Space string
	// Addr is its address in it.
	Addr string
}

// Networks makes networks for tasks. A network is known by a key, and outlives the
// borglet. Its methods may be called from several goroutines.
type Networks interface {
	// Make returns the network of a key, made if there is none.
	Make(key string) (Network, error)
	// Find returns one that was made.
	Find(key string) (Network, bool)
	// Remove takes one away, however far it was made; that there is none is no error.
	Remove(key string) error
	// Keys lists all that is there, also what was not made to the end.
	Keys() ([]string, error)
}

// allocNetwork begins the keys of the networks of allocs. A copy's network has the name
// of the copy, which has one dot less.
const allocNetwork = "alloc."

// NetworkKey names the network of its own that a copy is to have; empty: the machine's.
// What runs in an alloc has the alloc's.
func NetworkKey(id ID, d *borgrpc.Desired) string {
	switch {
	case d.GetAlloc() == "" && d.GetSpec().GetNetwork() == borgpb.Network_NETWORK_OWN:
		return id.String()
	case d.GetAlloc() != "" && d.GetAllocNetwork() == borgpb.Network_NETWORK_OWN:
		if mutant.Planted(mutant.AllocNetworkApart) {
			return id.String()
		}
		return allocNetwork + AllocName(d.GetAlloc())
	}
	return ""
}

// networks says how long each network stays: a copy's until it has ended, an alloc's as
// long as masters name the alloc or a copy is in it.
type networks struct {
	// Nil: there are none.
	made    Networks
	log     func(key string, err error)
	machine string
	// look asks for a look at what may go.
	look chan struct{}

	mu sync.Mutex
	// left is told when a network was removed.
	left *sync.Cond
	// keys are the networks that copies have or are about to have. Guarded by mu, as is
	// all that follows.
	keys map[ID]string
	// named are the keys of allocs that are on this machine, as masters say; nil: they
	// have not said yet.
	named map[string]bool
	// leaving are those that are being removed.
	leaving map[string]bool
	// stray are those of copies of which nothing else is left.
	stray map[string]bool
}

func newNetworks(cfg Config) *networks {
	n := &networks{
		made: cfg.Networks, machine: cfg.Name, look: make(chan struct{}, 1),
		keys: map[ID]string{}, leaving: map[string]bool{}, stray: map[string]bool{},
		log: func(key string, err error) {
			cfg.Log.Warn("a network cannot be removed; tried again", "machine", cfg.Name, "network", key, "err", err)
		},
	}
	n.left = sync.NewCond(&n.mu)
	return n
}

// recover takes note of who has which network, and has those of nobody removed. Their
// addresses are not given to anybody before they are.
func (n *networks) recover(records []Record) error {
	if n.made == nil {
		return nil
	}
	known := make(map[string]bool, len(records))
	n.mu.Lock()
	for _, r := range records {
		known[r.ID.String()] = true
		if key := NetworkKey(r.ID, r.Desired); key != "" && r.Ended == 0 {
			n.keys[r.ID] = key
		}
	}
	n.mu.Unlock()
	all, err := n.made.Keys()
	if err != nil {
		return err
	}
	for _, key := range all {
		if !strings.HasPrefix(key, allocNetwork) && !known[key] {
			n.stray[key] = true
		}
	}
	n.lookSoon()
	return nil
}

// before makes the network of a copy whose run is to begin, unless it has it from an
// earlier one. With none to be had here, the copy is refused.
func (n *networks) before(r Record) (refused string, err error) {
	key := NetworkKey(r.ID, r.Desired)
	switch {
	case key == "":
		return "", nil
	case n.made == nil:
		return fmt.Sprintf("network own: machine %s has none for tasks; add the constraint network=own to the job, or leave network out", n.machine), nil
	}
	n.mu.Lock()
	for n.leaving[key] {
		n.left.Wait()
	}
	n.keys[r.ID] = key
	n.mu.Unlock()
	_, err = n.made.Make(key)
	return "", err
}

// of is the network of a copy, if it has one of its own.
func (n *networks) of(id ID) Network {
	n.mu.Lock()
	key := n.keys[id]
	n.mu.Unlock()
	if key == "" {
		return Network{}
	}
	network, _ := n.made.Find(key)
	return network
}

// drop is for a copy that has ended.
func (n *networks) drop(id ID) error {
	if n.made == nil {
		return nil
	}
	n.mu.Lock()
	inAlloc := strings.HasPrefix(n.keys[id], allocNetwork)
	delete(n.keys, id)
	n.mu.Unlock()
	if inAlloc {
		n.lookSoon()
		return nil
	}
	return n.made.Remove(id.String())
}

// hear takes in which allocs with a network of their own are here.
func (n *networks) hear(allocs []string) {
	if n.made == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.named != nil && len(n.named) == len(allocs) && !slices.ContainsFunc(allocs, func(a string) bool { return !n.named[allocNetwork+AllocName(a)] }) {
		return
	}
	n.named = make(map[string]bool, len(allocs))
	for _, a := range allocs {
		n.named[allocNetwork+AllocName(a)] = true
	}
	n.lookSoon()
}

func (n *networks) lookSoon() {
	select {
	case n.look <- struct{}{}:
	default:
	}
}

// run removes what is nobody's any more, until ctx ends.
func (n *networks) run(ctx context.Context) {
	if n.made == nil {
		return
	}
	timer := time.NewTimer(networkRetry)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.look:
		case <-timer.C:
		}
		if !n.removeUnused() {
			timer.Reset(networkRetry)
		}
	}
}

// removeUnused says whether all is gone that should be.
func (n *networks) removeUnused() bool {
	gone := true
	all, err := n.made.Keys()
	if err != nil {
		n.log("", err)
		return false
	}
	for _, key := range all {
		if !n.leave(key) {
			continue
		}
		err := n.made.Remove(key)
		n.mu.Lock()
		delete(n.leaving, key)
		if err == nil {
			delete(n.stray, key)
		}
		n.left.Broadcast()
		n.mu.Unlock()
		if err != nil {
			gone = false
			n.log(key, err)
		}
	}
	return gone
}

// leave begins the removing of a network that is nobody's.
func (n *networks) leave(key string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if strings.HasPrefix(key, allocNetwork) {
		if n.named == nil || n.named[key] {
			return false
		}
		for _, other := range n.keys {
			if other == key {
				return false
			}
		}
	} else if !n.stray[key] {
		return false
	}
	n.leaving[key] = true
	return true
}

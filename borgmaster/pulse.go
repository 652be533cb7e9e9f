package borgmaster

import "sync"

// pulse wakes everybody who waits for the next change of something. It costs
// nothing while nobody waits.
type pulse struct {
	mu sync.Mutex
	// Guarded by mu. Nil while nobody waits.
	next chan struct{}
}

// Wait returns a channel that is closed at the next Fire. Take it before
// looking at what is waited for, or a change in between is missed.
func (p *pulse) Wait() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next = make(chan struct{})
	}
	return p.next
}

// Fire wakes all who wait. It does not block.
func (p *pulse) Fire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next != nil {
		close(p.next)
		p.next = nil
	}
}

package replica

import "sync"

// mailbox passes work to one goroutine. The sender never blocks; what may lie
// in it is bounded by whoever sends.
type mailbox[T any] struct {
	mu sync.Mutex
	// Guarded by mu.
	items []T
	// wake holds a token when there may be something in items.
	wake chan struct{}
}

func newMailbox[T any]() *mailbox[T] {
	return &mailbox[T]{wake: make(chan struct{}, 1)}
}

func (m *mailbox[T]) put(items ...T) {
	m.mu.Lock()
	m.items = append(m.items, items...)
	m.mu.Unlock()
	m.poke()
}

// putBounded puts an item unless limit lie there already.
func (m *mailbox[T]) putBounded(item T, limit int) bool {
	m.mu.Lock()
	ok := len(m.items) < limit
	if ok {
		m.items = append(m.items, item)
	}
	m.mu.Unlock()
	m.poke()
	return ok
}

// putDropping puts an item, and drops the oldest one when limit lie there.
func (m *mailbox[T]) putDropping(item T, limit int) {
	m.mu.Lock()
	if len(m.items) >= limit {
		m.items = m.items[1:]
	}
	m.items = append(m.items, item)
	m.mu.Unlock()
	m.poke()
}

func (m *mailbox[T]) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// take returns all that lies there, in order.
func (m *mailbox[T]) take() []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	items := m.items
	m.items = nil
	return items
}

package door

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// awaitEvery is how often an address that somebody else has is tried again. It is short:
	// the process that has it may be ended, and others may be after it.
	awaitEvery = 10 * time.Millisecond
	// awaitTold is how often a wait is told.
	awaitTold = time.Minute
)

// Await is Listen for a program that must come up although somebody else has its address:
// then the listener it returns tries again until it is closed, and accepts nobody before. told
// is called when the wait begins, every minute of it, and with a nil error when it has ended.
func Await(addr string, told func(err error)) (net.Listener, error) {
	l, err := Listen(addr)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	at, resolveErr := net.ResolveTCPAddr("tcp", addr)
	if resolveErr != nil {
		return nil, err
	}
	told(err)
	return &awaited{addr: addr, at: at, told: told, closed: make(chan struct{})}, nil
}

// ListenWithin is Listen that tries for patience, or until ctx ends, when somebody else has
// the address. told is as for Await.
func ListenWithin(ctx context.Context, addr string, patience time.Duration, told func(err error)) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	l, err := Listen(addr)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	told(err)
	if l, err = retry(addr, ctx.Done(), told); err == nil {
		told(nil)
	}
	return l, err
}

// retry tries an address until nobody else has it, or until done is closed.
func retry(addr string, done <-chan struct{}, told func(err error)) (net.Listener, error) {
	ticker := time.NewTicker(awaitEvery)
	defer ticker.Stop()
	for toldAt := time.Now(); ; {
		l, err := Listen(addr)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
		if time.Since(toldAt) >= awaitTold {
			toldAt = time.Now()
			told(err)
		}
		select {
		case <-ticker.C:
		case <-done:
			return nil, err
		}
	}
}

// awaited is a listener on an address that somebody else had.
type awaited struct {
	addr string
	at   net.Addr
	told func(err error)
	// closed is closed by Close, once.
	closed chan struct{}
	once   sync.Once

	// opening is held while the address is tried: one Accept is enough for that.
	opening sync.Mutex
	mu      sync.Mutex
	// listener once the address was free. Guarded by mu.
	listener net.Listener
}

// Accept waits for the address, then for a caller.
func (a *awaited) Accept() (net.Conn, error) {
	l, err := a.open()
	if err != nil {
		return nil, err
	}
	return l.Accept()
}

// open returns the listener as soon as there is one.
func (a *awaited) open() (net.Listener, error) {
	a.opening.Lock()
	defer a.opening.Unlock()
	if l := a.opened(); l != nil {
		return l, nil
	}
	l, err := retry(a.addr, a.closed, a.told)
	select {
	case <-a.closed:
		if err == nil {
			l.Close()
		}
		return nil, net.ErrClosed
	default:
	}
	if err != nil {
		return nil, err
	}
	a.told(nil)
	a.mu.Lock()
	a.listener = l
	a.mu.Unlock()
	select {
	case <-a.closed: // Close may have found no listener
		l.Close()
	default:
	}
	return l, nil
}

func (a *awaited) opened() net.Listener {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.listener
}

// Close ends the wait, or the listening.
func (a *awaited) Close() error {
	a.once.Do(func() { close(a.closed) })
	if l := a.opened(); l != nil {
		return l.Close()
	}
	return nil
}

// Addr is the address, whether it is listened on yet or not.
func (a *awaited) Addr() net.Addr { return a.at }

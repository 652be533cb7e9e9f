package entrance

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// ErrDropped is the error of a guest that was dropped to make room for another one.
var ErrDropped = errors.New("the connection was dropped, as newer ones came that have not yet said who they are either")

// ErrTooLarge is the error of a guest that has sent more than a handshake needs.
var ErrTooLarge = errors.New("the first messages of the connection are too large")

// Limits bound the guests of a hall.
type Limits struct {
	// From one address.
	Host int
	// In all.
	All int
}

// Hall holds the connections of a door whose other ends have not yet said who they are.
type Hall struct {
	limits Limits

	mu sync.Mutex
	// Guarded by mu, like all below.
	hosts map[string]*host
	all   int
	// What the guests have sent.
	bytes int64
	// Hosts by their number of guests; those of one number in the order in which
	// they came to have it.
	sizes []*list.List
	// The largest number of guests that a host has.
	largest int
}

// host is an address with its guests.
type host struct {
	key string
	// Oldest first.
	guests list.List
	// In Hall.sizes.
	place *list.Element
}

// NewHall returns an empty hall.
func NewHall(limits Limits) *Hall {
	h := &Hall{limits: limits, hosts: map[string]*host{}, sizes: make([]*list.List, limits.Host+1)}
	for i := range h.sizes {
		h.sizes[i] = list.New()
	}
	return h
}

var dropped atomic.Int64

// Dropped returns how many guests of all halls this process has dropped so far.
func Dropped() int64 { return dropped.Load() }

// HostOf returns the key under which connections from an address are counted: its
// address without the port, and of IPv6 the network that one subscriber has.
func HostOf(addr net.Addr) string {
	text := addr.String()
	name, _, err := net.SplitHostPort(text)
	if err != nil {
		return text
	}
	ip, err := netip.ParseAddr(name)
	if err != nil {
		return name
	}
	if ip = ip.Unmap().WithZone(""); ip.Is6() {
		const subscriberBits = 64
		if p, err := ip.Prefix(subscriberBits); err == nil {
			return p.String()
		}
	}
	return ip.String()
}

// Enter makes a connection a guest until Leave is called. If there is no room it
// drops the oldest guest of the same address, or, when all addresses together have too many, of the
// address that has most.
func (h *Hall) Enter(conn net.Conn, turns *Turns) *Guest {
	g := &Guest{Conn: conn, turns: turns, host: HostOf(conn.RemoteAddr()), wake: make(chan bool, 1)}
	h.Take(g)
	return g
}

// Take is Enter for a guest that has left a hall and makes no handshake any more.
func (h *Hall) Take(g *Guest) {
	g.hall = h
	h.mu.Lock()
	of := h.hosts[g.host]
	if of == nil {
		of = &host{key: g.host}
		of.place = h.sizes[0].PushBack(of)
		h.hosts[g.host] = of
	}
	var drop *Guest
	switch {
	case of.guests.Len() >= h.limits.Host:
		drop = of.guests.Front().Value.(*Guest)
	case h.all >= h.limits.All:
		most := h.sizes[h.largest].Front().Value.(*host)
		drop = most.guests.Front().Value.(*Guest)
	}
	if drop != nil {
		h.remove(drop)
	}
	// If its last guest was dropped, the address is no longer in the map.
	h.hosts[g.host] = of
	g.place = of.guests.PushBack(g)
	h.all++
	h.resize(of)
	h.mu.Unlock()
	if drop != nil {
		dropped.Add(1)
		drop.drop()
	}
}

// receive counts bytes that a guest has sent, and reports whether it may have sent so many.
func (h *Hall) receive(g *Guest, n int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if g.place == nil {
		return true
	}
	g.bytes += n
	h.bytes += n
	return g.bytes <= crampedGuestBytes || g.bytes <= maxGuestBytes && h.bytes <= maxHallBytes
}

// remove takes a guest out, and reports whether it was there. The caller holds mu.
func (h *Hall) remove(g *Guest) bool {
	if g.place == nil {
		return false
	}
	of := h.hosts[g.host]
	of.guests.Remove(g.place)
	g.place = nil
	h.bytes -= g.bytes
	g.bytes = 0
	h.all--
	h.resize(of)
	if of.guests.Len() == 0 {
		delete(h.hosts, g.host)
	}
	return true
}

// resize puts a host whose number of guests has changed by one where it belongs. The
// caller holds mu.
func (h *Hall) resize(of *host) {
	n := of.guests.Len()
	for _, was := range []int{n - 1, n + 1} {
		if was >= 0 && was < len(h.sizes) {
			// A list ignores an element of another one.
			h.sizes[was].Remove(of.place)
		}
	}
	if n > 0 {
		of.place = h.sizes[n].PushBack(of)
	}
	h.largest = max(h.largest, n)
	for h.largest > 0 && h.sizes[h.largest].Len() == 0 {
		h.largest--
	}
}

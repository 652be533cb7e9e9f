package main

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"borg/borglet"
	"borg/tell/portholder"
)

const (
	// maxProtectedPorts bounds --protected-ports.
	maxProtectedPorts = 512
	// mastersEvery is how often is looked which masters are on this machine.
	mastersEvery = 10 * time.Second
	// namesWithin bounds how long names of masters are looked up each time.
	namesWithin = 5 * time.Second
)

// protectedPorts are the ports of this machine that no task may bind.
type protectedPorts struct {
	found atomic.Pointer[[]borglet.ProtectedPort]
}

// all returns them. It does not block.
func (p *protectedPorts) all() []borglet.ProtectedPort {
	if found := p.found.Load(); found != nil {
		return *found
	}
	return nil
}

// watch finds them again and again, until ctx ends: masters come and go.
func (p *protectedPorts) watch(ctx context.Context, s *serve) {
	ticker := time.NewTicker(mastersEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.find(ctx, s)
		case <-ctx.Done():
			return
		}
	}
}

// find lists the ports of a borglet and of the masters that are on its machine. A port that the
// kernel chose (port 0) is another one after the next start, and needs no protection.
func (p *protectedPorts) find(ctx context.Context, s *serve) {
	var found []borglet.ProtectedPort
	add := func(port uint16, of string) {
		isThere := func(p borglet.ProtectedPort) bool { return p.Port == port }
		if port != 0 && !slices.ContainsFunc(found, isThere) {
			found = append(found, borglet.ProtectedPort{Port: port, Of: of})
		}
	}
	for _, addr := range []string{s.listen, s.http, s.packages.listen} {
		_, port := splitAddr(addr)
		add(port, "this machine's borglet")
	}
	ctx, cancel := context.WithTimeout(ctx, namesWithin)
	defer cancel()
	for _, addr := range s.issuer.known() {
		if host, port := splitAddr(addr); isOwnHost(ctx, host) {
			add(port, "a master of the cell")
		}
	}
	for _, port := range s.protectedPorts {
		add(port, "a program outside of tasks")
	}
	p.found.Store(&found)
}

// splitAddr returns the parts of HOST:PORT; port 0 of anything else.
func splitAddr(addr string) (host string, port uint16) {
	host, text, _ := net.SplitHostPort(addr)
	n, _ := strconv.ParseUint(text, 10, 16)
	return host, uint16(n)
}

// isOwnHost reports whether an address, or a name, is this machine's.
func isOwnHost(ctx context.Context, host string) bool {
	addrs := []netip.Addr{}
	if addr, err := netip.ParseAddr(host); err == nil {
		addrs = append(addrs, addr)
	} else if addrs, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
		return false
	}
	own, _ := net.InterfaceAddrs()
	return slices.ContainsFunc(addrs, func(addr netip.Addr) bool {
		return addr.IsLoopback() || slices.ContainsFunc(own, func(a net.Addr) bool {
			network, isNetwork := a.(*net.IPNet)
			return isNetwork && network.IP.Equal(net.IP(addr.WithZone("").AsSlice()))
		})
	})
}

// tellWait returns what logs that an address which somebody else has is waited for.
func (s *serve) tellWait(whom, flag, addr string) func(err error) {
	return func(err error) {
		if err == nil {
			s.log.Info("the address is free, and is listened on", "machine", s.name, "addr", addr)
			return
		}
		_, port := splitAddr(addr)
		s.log.Warn("cannot listen for "+whom+", and tries again until it can; a task that has the port is ended, any other program is not: stop it, or choose another address with "+flag,
			"machine", s.name, "addr", addr, "held_by", portholder.Of(port), "err", err)
	}
}

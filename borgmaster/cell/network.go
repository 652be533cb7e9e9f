package cell

import (
	"errors"
	"strings"

	"borg/proto/borgpb"
)

// FormatNetworks is the format from which on tasks and allocs can have networks of
// their own.
const FormatNetworks = 9

// NetworkAttribute is what a machine says of the networks that it can give: "own"
// where tasks can have their own.
const NetworkAttribute = "network"

// maxTaskAddrBytes is the length of the longest IP address.
const maxTaskAddrBytes = 45

// ownNetwork is what a machine must have for those that want a network of their own.
var ownNetwork = &borgpb.Constraint{Key: NetworkAttribute, Relation: borgpb.Relation_RELATION_EQUAL, Value: "own"}

// checkNetwork: tasks in an alloc have its network.
func checkNetwork(job *borgpb.JobSpec, t *borgpb.TaskSpec, field string) *borgpb.Refusal {
	if t.Network != borgpb.Network_NETWORK_UNSPECIFIED && job.AllocSet != "" {
		return invalid(field+".network", "tasks in an alloc have its network; say it of alloc set %s", clip(job.AllocSet, 128))
	}
	return nil
}

// Networked is a task as it is placed: only where it can have the network that it
// wants.
func Networked(t *borgpb.TaskSpec) *borgpb.TaskSpec {
	if t.GetNetwork() != borgpb.Network_NETWORK_OWN {
		return t
	}
	return constrained(t, ownNetwork)
}

// Network is whose network the copy has. That of a copy whose spec is not known any more
// is not known either.
func (p *Copy) Network() borgpb.Network {
	switch {
	case p.alloc != nil:
		return p.alloc.set.spec.Network
	case p.spec == nil:
		return borgpb.Network_NETWORK_UNSPECIFIED
	}
	return p.TaskSpec().Network
}

// HearsAddr is what counts of the address that a report names: that of a copy which has
// its machine's network is its machine's.
func (c *Cell) HearsAddr(p *Copy, addr string) string {
	if c.format < FormatNetworks || p.Network() != borgpb.Network_NETWORK_OWN && (p.alloc != nil || p.spec != nil) {
		return ""
	}
	return addr
}

// Addr is the copy's own address; empty: it has its machine's, or has not said.
func (p *Copy) Addr() string {
	if p.few == nil {
		return ""
	}
	return p.few.addr
}

func (p *Copy) setAddr(addr string) {
	if addr != "" {
		p.rare().addr = addr
	} else if p.few != nil {
		p.few.addr = ""
	}
}

// validAddr: an address is not looked into, and nothing else passes for one.
func validAddr(addr string) bool {
	return len(addr) <= maxTaskAddrBytes && strings.Trim(addr, "0123456789abcdef.:") == ""
}

// addr writes the copy's own address, if it has one.
func (e *encoder) addr(addr string) {
	if addr != "" {
		e.byte(tagAddr)
		e.str(addr)
	}
}

func (l *loader) addr(d *decoder, p *Copy) error {
	if l.c.format < FormatNetworks || !d.tagged(tagAddr) {
		return nil
	}
	if addr := d.str(); addr == "" || !validAddr(addr) {
		return errOdd
	} else {
		p.rare().addr = addr
	}
	return nil
}

// checkAddr is the invariant of a copy's address.
func (c *Cell) checkAddr(p *Copy) error {
	if addr := p.Addr(); addr != "" && (!validAddr(addr) || c.HearsAddr(p, addr) != addr) {
		return errors.New("it has the address " + addr + " and did not ask for one")
	}
	return nil
}

package pretend

import (
	"borg/borglet"
	"borg/proto/borgrpc"
)

// Memory is that of a machine which may be short of it.
type Memory struct {
	CapacityBytes int64
	// FreeBytes is what can be had at the moment.
	FreeBytes func() int64
	// UsesBytes is what a copy has at the moment whose process has run for so long.
	UsesBytes func(id borglet.ID, d *borgrpc.Desired, ageNs int64) int64
	// Squeezed hears of each look at which there was too little.
	Squeezed func(Squeeze)
}

// Squeeze is one look at a machine that was short of memory, and what came of it.
type Squeeze struct {
	Was borglet.Squeezed
	// All that run and were not told to stop.
	Shares []Share
	// Those that its borglet ends for it.
	Ends []borglet.ID
}

// Share is what one copy has of a machine's memory, as its borglet was told.
type Share struct {
	ID      borglet.ID
	Desired *borgrpc.Desired
	// What it is to reserve; its limit, as long as no master has said.
	UsedBytes, ReservedBytes int64
}

// lookNs lies between two looks at a machine's memory.
const lookNs = 250 * millisecond

// lookAtMemory looks now and then, as long as this borglet lives.
func (m *Machine) lookAtMemory() {
	if m.cfg.Memory == nil {
		return
	}
	m.after(lookNs, func() {
		// What is being written down is not as its borglet knows it.
		if len(m.work) == 0 {
			m.relieve()
		}
		m.lookAtMemory()
	})
}

// relieve has the borglet end who must give way, if there is too little.
func (m *Machine) relieve() {
	mem, wallNs := m.cfg.Memory, m.cfg.Env.Now().WallNs
	used := map[borglet.ID]int64{}
	var shares []Share
	for _, id := range m.core.Running() {
		p := m.kernel.procs[id]
		if p == nil || !p.running {
			continue
		}
		d := m.disk.specs[id]
		used[id] = mem.UsesBytes(id, d, wallNs-p.startedNs)
		if m.disk.intent[id].Stop != nil {
			continue
		}
		s := Share{ID: id, Desired: d, UsedBytes: used[id], ReservedBytes: m.reservedBytes[id]}
		if s.ReservedBytes == 0 {
			s.ReservedBytes = d.GetSpec().GetResources().GetMemBytes()
		}
		shares = append(shares, s)
	}
	ev, short := borglet.Pressed(mem.CapacityBytes, mem.FreeBytes(), true, used)
	if !short {
		return
	}
	effects := m.core.Step(m.cfg.Env.Now(), ev)
	squeeze := Squeeze{Was: ev, Shares: shares}
	for _, s := range shares {
		for _, e := range effects {
			if kill, ok := e.(borglet.Kill); ok && kill.ID == s.ID {
				squeeze.Ends = append(squeeze.Ends, s.ID)
			}
		}
	}
	mem.Squeezed(squeeze)
	m.carryOut(effects)
	m.cfg.Witness.Changed()
}

// toldReservations notes what a master that is obeyed says that copies will use.
func (m *Machine) toldReservations(req *borgrpc.PollRequest) {
	if m.cfg.Memory == nil {
		return
	}
	for _, d := range req.GetDesired() {
		if id, err := borglet.IDOf(d.GetCopy()); err == nil {
			m.reservedBytes[id] = d.GetReservedMemBytes()
		}
	}
}

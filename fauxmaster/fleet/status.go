package fleet

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgrpc"
)

// Longer times between two polls of a machine are counted as one. Tenths of a
// second.
const maxIntervalTenths = 100

// Status is how a fleet stands, as its machines see it.
type Status struct {
	Machines int `json:"machines"`
	// Copies whose process runs.
	Running int `json:"running"`
	// Of machines that nothing is heard of: how many, and copies whose process runs there.
	Away        int `json:"away"`
	RunningAway int `json:"running_away"`
	// Processes of tasks that have begun, and that were told to stop, since the fleet
	// began.
	Begun   int64 `json:"begun"`
	Stopped int64 `json:"stopped"`
	// Machines by the replica that polled them last, and by the term of that poll.
	ByReplica map[uint64]int `json:"by_replica"`
	ByTerm    map[uint64]int `json:"by_term"`
	// Machines that nobody has polled yet.
	Unpolled int `json:"unpolled"`
	// How long ago the poll was that is longest ago, of those that were polled.
	OldestNs int64 `json:"oldest_ns"`
	// Polls that came so many tenths of a second after the one before, all since the
	// fleet began; the last counts those that came later.
	Intervals []int64 `json:"intervals"`
	// Of the states of all machines, and of what their copies use, as each last told its
	// own: what they would say together if nothing that is known were left out.
	StateBytes int64 `json:"state_bytes"`
	UsageBytes int64 `json:"usage_bytes"`
}

// With is how this fleet and another one stand together.
func (s Status) With(other Status) Status {
	s.Machines, s.Running, s.Unpolled = s.Machines+other.Machines, s.Running+other.Running, s.Unpolled+other.Unpolled
	s.Away, s.RunningAway = s.Away+other.Away, s.RunningAway+other.RunningAway
	s.Begun, s.Stopped = s.Begun+other.Begun, s.Stopped+other.Stopped
	s.OldestNs = max(s.OldestNs, other.OldestNs)
	s.StateBytes, s.UsageBytes = s.StateBytes+other.StateBytes, s.UsageBytes+other.UsageBytes
	s.ByReplica, s.ByTerm = sums(s.ByReplica, other.ByReplica), sums(s.ByTerm, other.ByTerm)
	intervals := slices.Clone(other.Intervals)
	for i, n := range s.Intervals {
		intervals[i] += n
	}
	s.Intervals = intervals
	return s
}

func sums(a, b map[uint64]int) map[uint64]int {
	all := map[uint64]int{}
	for _, m := range []map[uint64]int{a, b} {
		for k, n := range m {
			all[k] += n
		}
	}
	return all
}

// polled notes a poll that was obeyed, and the answer.
func (m *machine) polled(req *borgrpc.PollRequest, resp *borgrpc.PollResponse) {
	if !resp.Unchanged {
		m.stateBytes = proto.Size(&borgrpc.PollResponse{Highest: resp.Highest, Hash: resp.Hash, Tasks: resp.Tasks, Versions: resp.Versions})
	}
	if len(resp.Usage) > 0 {
		m.usageBytes = proto.Size(&borgrpc.PollResponse{Usage: resp.Usage, AllocUsage: resp.AllocUsage})
	}
	now := m.world.AtNs()
	if m.polledNs != 0 {
		tenths := min((now-m.polledNs)/1e8, maxIntervalTenths)
		m.fleet.intervals[tenths].Add(1)
	}
	m.polledNs, m.replica, m.term = now, req.GetReplica(), req.GetFence().GetTerm()
}

// Status looks at all machines.
func (f *Fleet) Status() Status {
	s := Status{Machines: len(f.machines), Begun: f.begun.Load(), Stopped: f.stopped.Load(), ByReplica: map[uint64]int{}, ByTerm: map[uint64]int{}}
	for i := range f.worlds {
		f.worlds[i].Do(func() {
			first := (i - f.cfg.First%worlds + worlds) % worlds
			for at := first; at < len(f.machines); at += worlds {
				s.add(f.machines[at])
			}
		})
	}
	for i := range f.intervals {
		s.Intervals = append(s.Intervals, f.intervals[i].Load())
	}
	return s
}

func (s *Status) add(m *machine) {
	running := m.RunningCount()
	s.Running += running
	s.StateBytes += int64(m.stateBytes)
	s.UsageBytes += int64(m.usageBytes)
	if m.fleet.reach.away(m.k) {
		s.Away++
		s.RunningAway += running
	}
	if m.polledNs == 0 {
		s.Unpolled++
		return
	}
	s.ByReplica[m.replica]++
	s.ByTerm[m.term]++
	s.OldestNs = max(s.OldestNs, m.world.AtNs()-m.polledNs)
}

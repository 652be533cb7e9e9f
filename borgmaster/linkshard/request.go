package linkshard

import (
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/sight"
	"borg/mutant"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// Known is what a machine's borglet last said. It may be lost: then specs are
// sent once more than needed, and the state is asked for in full.
type Known struct {
	Hash  []byte
	Tasks []*borgpb.TaskReport
	// Spec versions that it holds, in the order of Tasks.
	Versions []uint64
	// Marks of the labels that it holds, in the same order.
	LabelMarks []uint64
	// What it says its machine is, and the last such word that the cell has
	// followed.
	Word, Followed *borgpb.MachineSpec
	// When an operator was last told of trouble with it.
	warnedNs int64
	// What was reported of each copy and is not yet in the cell.
	told map[cell.CopyID]telling
	// What the borglet described of copies that a restored cell does not have, and
	// before when the cell is not told again what was heard.
	described   map[cell.CopyID]*borgrpc.Desired
	hearAgainNs int64
	// Before when it is not asked what its copies use.
	usageDueNs int64
	// Before when what it says of volumes is not told again.
	volumesAgainNs int64
	// What the last request was made from that is no repetition.
	basis basis
	// When it was last seen to be at rest.
	rested rested
	// Cell time when the last request was made.
	sentNs int64
	// Counts the requests that were made anew, and not repeated.
	asked uint64
}

// telling is a report that is on its way to the log.
type telling struct {
	state    int32
	restarts uint32
	pid      int64
	addr     string
	attests  bool
	// Until when it is not sent again, and how often it was.
	untilNs int64
	times   uint
}

// Take takes in an answer that was not fenced.
func (k *Known) Take(resp *borgrpc.PollResponse) {
	if !resp.Unchanged {
		k.Hash, k.Tasks, k.Versions, k.LabelMarks = resp.Hash, resp.Tasks, resp.Versions, resp.LabelMarks
	}
	if resp.Spec != nil {
		k.Word = resp.Spec
	}
	for _, d := range resp.Described {
		uid, err := cell.ParseUID(d.GetCopy().GetJobUid())
		if err != nil {
			continue
		}
		if k.described == nil {
			k.described = make(map[cell.CopyID]*borgrpc.Desired)
		}
		k.described[cell.CopyID{Job: uid, Index: d.Copy.Index, Attempt: d.Copy.Attempt}] = d
	}
}

// FenceOf is the position in the log that orders taken from c come from. A
// borglet that has obeyed a later one ignores them, so a replica that is
// behind, or deposed and does not know it, does no harm.
func FenceOf(c *cell.Cell) *borgrpc.Fence {
	return &borgrpc.Fence{CellId: c.ID(), Epoch: c.Epoch(), Term: c.Term(), Index: c.Index()}
}

// maxPollSpecBytes bounds the specs in one poll. A copy whose spec does not fit
// is left out, which stops nothing, and comes with the next poll.
const maxPollSpecBytes = 2 << 20

// Build makes the poll for a machine from the cell. Specs that the borglet has
// reported to hold are not repeated, and not those of what runs before it has said
// what it holds.
func Build(c *cell.Cell, m *cell.Machine, cellName string, replica uint64, known *Known) *borgrpc.PollRequest {
	req := &borgrpc.PollRequest{Fence: FenceOf(c), Machine: m.Name(), KnownHash: known.Hash, Replica: replica}
	// A borglet of which nothing is known has what runs there, most times: another replica
	// has polled it before. Its answer tells, and a share that moves comes without a
	// storm of specs.
	first := len(known.Hash) == 0
	held := make(map[cell.CopyID]uint64, len(known.Tasks))
	marks := make(map[cell.CopyID]uint64)
	for i, t := range known.Tasks {
		id, ok := idOf(t)
		if !ok {
			continue
		}
		if i < len(known.Versions) {
			held[id] = known.Versions[i]
		}
		if i < len(known.LabelMarks) && known.LabelMarks[i] != 0 {
			marks[id] = known.LabelMarks[i]
		}
		if mutant.Planted(mutant.UnknownStopped) && m.Copy(id) == nil && id.Job.Epoch < c.Epoch() && !terminal(t.State) {
			req.Stops = append(req.Stops, &borgrpc.Stop{Copy: copyID(id)})
		}
		over := m.Copy(id) == nil || mutant.Planted(mutant.ForgetBeforeLogged)
		if terminal(t.State) && over && !m.Unheard() && remembers(c, id, t) {
			req.Forget = append(req.Forget, copyID(id))
		}
	}
	req.Describe = describe(c, m, known)
	req.AllocNetworks = allocNetworks(m)
	req.KeepAllocs = c.KeptOn(m)
	volumes(c, m, req)
	specBytes := 0
	for p := range m.Copies() {
		switch p.State() {
		case borgpb.AttemptState_ATTEMPT_STATE_STOPPING:
			if mutant.Planted(mutant.DuplicateLeftAlone) && p.Cause() == borgpb.StopCause_STOP_CAUSE_DUPLICATE {
				continue
			}
			req.Stops = append(req.Stops, &borgrpc.Stop{
				Copy: copyID(p.ID()), Cause: p.Cause(), Reason: sight.OfTask(c, p.Key().User).Text(p.StopReason()), Index: p.StopIndex(), GraceNs: p.GraceNs(), NoticeNs: p.NoticeNs(),
			})
		case borgpb.AttemptState_ATTEMPT_STATE_QUARANTINED:
			// A borglet that does not have it is not to start it.
			if d := desired(p, cellName, held); !m.Unheard() {
				d.Quarantined = true
				req.Desired = append(req.Desired, d)
			}
		case borgpb.AttemptState_ATTEMPT_STATE_UNREACHABLE:
			// Neither wanted nor unwanted until the machine is up again.
		default:
			if _, has := held[p.ID()]; !p.Current() || m.Unheard() && !has {
				continue
			}
			d := desired(p, cellName, held)
			d.Files = fileVersions(c, p)
			label(d, c.JobByUID(p.ID().Job), marks[p.ID()])
			if first && p.State() == borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
				d.Spec, d.Labels = nil, nil
			}
			specBytes += proto.Size(d.Spec) + proto.Size(d.Labels)
			if d.Spec == nil && d.Labels == nil || specBytes <= maxPollSpecBytes {
				req.Desired = append(req.Desired, d)
				req.Packages = wantedPackages(c, m, p, req.Packages)
			}
		}
	}
	return req
}

// Desired is what the borglet of its machine is told of a copy when it hears of
// it first.
func Desired(p *cell.Copy, cellName string) *borgrpc.Desired { return desired(p, cellName, nil) }

func desired(p *cell.Copy, cellName string, held map[cell.CopyID]uint64) *borgrpc.Desired {
	d := &borgrpc.Desired{
		Copy: copyID(p.ID()), User: p.Key().User, Job: p.Key().Name, Kind: p.Kind(), Priority: p.Priority(),
		Ports: p.Ports(), Version: p.Version(), Cell: cellName, Devices: cell.GrantsProto(p.Devices()),
	}
	if a := p.Alloc(); a != nil {
		d.Alloc = a.Name()
		capacity := a.Capacity()
		d.AllocResources, d.AllocNetwork = capacity.Proto(), a.Set().Spec().GetNetwork()
		d.AllocVolumes, d.AllocByIndex = a.Set().Spec().GetVolumes(), p.AllocByIndex()
	} else if name := p.Saves(); name != "" {
		// It works in the directory that the alloc left, or shares with the alloc that
		// is there again.
		d.Alloc = name
		room := p.Resources()
		for a := range p.Machine().Allocs() {
			if a.Name() == name {
				room = room.Add(a.Capacity())
			}
		}
		d.AllocResources = room.Proto()
	}
	if reserved, _, ok := p.Reservation(); ok {
		d.ReservedMemBytes = reserved.MemBytes
	}
	for _, id := range p.After() {
		d.After = append(d.After, copyID(id))
	}
	// One that holds a later version has it from before the cell was restored.
	if version, ok := held[p.ID()]; !ok || version < p.Version() {
		d.Spec = p.MergedSpec()
	}
	return d
}

// fileVersions are those of the files that a copy sees.
func fileVersions(c *cell.Cell, p *cell.Copy) []*borgrpc.FileVersion {
	named := p.TaskSpec().GetFiles()
	if len(named) == 0 {
		return nil
	}
	list := make([]*borgrpc.FileVersion, len(named))
	for i, one := range named {
		list[i] = &borgrpc.FileVersion{Name: one.GetName()}
		if f := c.File(p.Key().User, one.GetName()); f != nil {
			list[i].Version = f.Version()
		}
	}
	return list
}

// remembers tells whether c is late enough in the log to have known the copy
// that it does not hold on a machine: then the copy is over. A cell that was restored
// has known those of an earlier epoch up to the attempt that it has of the task; that
// one which was told to stop has stopped is of no use to it.
func remembers(c *cell.Cell, id cell.CopyID, t *borgpb.TaskReport) bool {
	switch {
	case id.Job.Epoch == c.Epoch():
		return id.Job.Index <= c.Index()
	case id.Job.Epoch > c.Epoch():
		return false
	case t.State == int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED):
		return true
	}
	j := c.JobByUID(id.Job)
	if j == nil {
		return false
	}
	task := j.Task(id.Index)
	return task == nil || id.Attempt <= task.Attempt()
}

func copyID(id cell.CopyID) *borgrpc.CopyID {
	return &borgrpc.CopyID{JobUid: id.Job.String(), Index: id.Index, Attempt: id.Attempt}
}

// idOf reads the name of the copy that a report is about.
func idOf(t *borgpb.TaskReport) (cell.CopyID, bool) {
	uid, err := cell.ParseUID(t.JobUid)
	return cell.CopyID{Job: uid, Index: t.Index, Attempt: t.Attempt}, err == nil
}

// copyOf is the same as text, for maps of what cannot be read too.
func copyOf(t *borgpb.TaskReport) [3]any { return [3]any{t.JobUid, t.Index, t.Attempt} }

// terminal tells whether a borglet's word on a copy is its last one.
func terminal(state int32) bool {
	switch borgpb.AttemptState(state) {
	case borgpb.AttemptState_ATTEMPT_STATE_FINISHED, borgpb.AttemptState_ATTEMPT_STATE_FAILED,
		borgpb.AttemptState_ATTEMPT_STATE_STOPPED, borgpb.AttemptState_ATTEMPT_STATE_LOST:
		return true
	}
	return false
}

package borgmaster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/linkshard"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// askedAtOnce bounds the machines that are asked at one time what they run.
	askedAtOnce = 64
	// askTimeout is how long one of them may take.
	askTimeout = 5 * time.Second
	// maxUnheardListed bounds the names of machines that were not heard.
	maxUnheardListed = 100
)

// restoreAPI serves RestoreService.
type restoreAPI struct {
	borgrpc.UnimplementedRestoreServiceServer
	m *Master
}

// GetRestore tells how far the cell has come since it was restored.
func (a *restoreAPI) GetRestore(ctx context.Context, _ *borgrpc.GetRestoreRequest) (*borgrpc.GetRestoreResponse, error) {
	if err := a.m.readIndex(ctx); err != nil {
		return nil, err
	}
	resp := &borgrpc.GetRestoreResponse{}
	err := a.m.viewMuch(ctx, func(c *cell.Cell) error {
		resp.FromIndex, resp.FromWallNs, resp.RestoredWallNs, resp.Restored = c.Restored()
		if !resp.Restored {
			return nil
		}
		resp.Epoch, resp.Machines = c.Epoch(), uint32(c.NumMachines())
		resp.HeldForNs, resp.Held = c.Held()
		for m := range c.Machines() {
			if !m.Unheard() {
				resp.Heard++
			} else if len(resp.Unheard) < maxUnheardListed {
				resp.Unheard = append(resp.Unheard, m.Name())
			}
			if n := m.Unknown(); n > 0 {
				resp.Unknown = append(resp.Unknown, &borgrpc.UnknownOn{Machine: m.Name(), Copies: n})
			}
		}
		lens := a.m.lens(ctx, c)
		for j := range c.Jobs() {
			if !lens.Job(j) {
				continue
			}
			pending, _, _ := j.Counts()
			resp.Pending += pending
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// ListUnknown asks the machines what they run that the cell does not know.
func (a *restoreAPI) ListUnknown(ctx context.Context, req *borgrpc.ListUnknownRequest) (*borgrpc.ListUnknownResponse, error) {
	if err := a.m.readIndex(ctx); err != nil {
		return nil, err
	}
	return onElected(ctx, a.m, true,
		func(ctx context.Context) (*borgrpc.ListUnknownResponse, error) {
			unknown, silent := a.m.unknown(ctx)
			unknown = a.m.seenUnknown(ctx, unknown)
			return whole(&borgrpc.ListUnknownResponse{Unknown: unknown, Silent: silent}, "unknown copies")
		},
		func(ctx context.Context, conn *grpc.ClientConn) (*borgrpc.ListUnknownResponse, error) {
			return borgrpc.NewRestoreServiceClient(conn).ListUnknown(ctx, req)
		})
}

// AdoptUnknown makes jobs of it.
func (a *restoreAPI) AdoptUnknown(ctx context.Context, req *borgrpc.AdoptUnknownRequest) (*borgrpc.AdoptUnknownResponse, error) {
	if err := a.m.forAdmins(door.Caller(ctx)); err != nil {
		return nil, err
	}
	if req.GetRequestId() == "" {
		return nil, status.Error(codes.InvalidArgument, "a mutation needs a request id, the same for all its retries")
	}
	return onElected(ctx, a.m, true,
		func(ctx context.Context) (*borgrpc.AdoptUnknownResponse, error) {
			if err := a.m.believes(ctx); err != nil {
				return nil, err
			}
			unknown, silent := a.m.unknown(ctx)
			done, err := a.m.adopt(ctx, req, unknown)
			done = append(done, notFound(req.GetJobs(), unknown)...)
			return &borgrpc.AdoptUnknownResponse{Jobs: done, Silent: silent}, err
		},
		func(ctx context.Context, conn *grpc.ClientConn) (*borgrpc.AdoptUnknownResponse, error) {
			return borgrpc.NewRestoreServiceClient(conn).AdoptUnknown(ctx, req)
		})
}

// StopUnknown has it stopped.
func (a *restoreAPI) StopUnknown(ctx context.Context, req *borgrpc.StopUnknownRequest) (*borgrpc.StopUnknownResponse, error) {
	if err := a.m.forAdmins(door.Caller(ctx)); err != nil {
		return nil, err
	}
	switch {
	case req.GetRequestId() == "":
		return nil, status.Error(codes.InvalidArgument, "a mutation needs a request id, the same for all its retries")
	case req.GetAll() == (len(req.GetJobs()) > 0):
		return nil, status.Error(codes.InvalidArgument, "name jobs, or say all")
	}
	return onElected(ctx, a.m, true,
		func(ctx context.Context) (*borgrpc.StopUnknownResponse, error) {
			if err := a.m.believes(ctx); err != nil {
				return nil, err
			}
			unknown, silent := a.m.unknown(ctx)
			done, err := a.m.stopUnknown(ctx, req, unknown)
			done = append(done, notFound(req.GetJobs(), unknown)...)
			return &borgrpc.StopUnknownResponse{Jobs: done, Silent: silent}, err
		},
		func(ctx context.Context, conn *grpc.ClientConn) (*borgrpc.StopUnknownResponse, error) {
			return borgrpc.NewRestoreServiceClient(conn).StopUnknown(ctx, req)
		})
}

// unknown asks every machine of which the cell says that it runs unknown copies. It
// asks as a poll does, with what the machine should run, so that a machine that
// obeys a later master does not answer. A machine that was not heard since the restore
// counts as silent: the cell does not know yet what runs there.
func (m *Master) unknown(ctx context.Context) (unknown []*borgrpc.Unknown, silent []*borgrpc.Silent) {
	var machines []string
	m.cfg.Log.View(func(c *cell.Cell) {
		for x := range c.Machines() {
			switch {
			case x.Unheard():
				silent = append(silent, &borgrpc.Silent{Machine: x.Name(), Error: "no master has heard it since the cell was restored"})
			case x.Unknown() > 0:
				machines = append(machines, x.Name())
			}
		}
	})
	var mu sync.Mutex
	var all errgroup.Group
	all.SetLimit(askedAtOnce)
	for _, name := range machines {
		all.Go(func() error {
			found, err := m.describeUnknown(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			unknown = append(unknown, found...)
			if err != nil {
				silent = append(silent, &borgrpc.Silent{Machine: name, Error: door.Reason(err)})
			}
			return nil
		})
	}
	_ = all.Wait()
	slices.SortFunc(unknown, func(a, b *borgrpc.Unknown) int {
		return cmp.Or(cmp.Compare(jobOf(a), jobOf(b)), cmp.Compare(a.Report.JobUid, b.Report.JobUid), cmp.Compare(a.Report.Index, b.Report.Index),
			cmp.Compare(a.Report.Attempt, b.Report.Attempt), cmp.Compare(a.Machine, b.Machine))
	})
	slices.SortFunc(silent, func(a, b *borgrpc.Silent) int { return cmp.Compare(a.Machine, b.Machine) })
	m.cfg.Log.View(func(c *cell.Cell) {
		for _, u := range unknown {
			u.WhyNot = WhyNotAdopted(c, u)
		}
	})
	return unknown, silent
}

// describeUnknown asks one machine twice: what it runs, and then of what the cell does not
// have what that is.
func (m *Master) describeUnknown(ctx context.Context, machine string) ([]*borgrpc.Unknown, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	resp, err := m.poll(ctx, machine, nil)
	if err != nil {
		return nil, err
	}
	var found []*borgrpc.Unknown
	var ids []*borgrpc.CopyID
	m.cfg.Log.View(func(c *cell.Cell) {
		for _, t := range linkshard.Unknown(c, c.Machine(machine), resp.Tasks) {
			found = append(found, &borgrpc.Unknown{Machine: machine, Report: t})
			ids = append(ids, &borgrpc.CopyID{JobUid: t.JobUid, Index: t.Index, Attempt: t.Attempt})
		}
	})
	for len(ids) > 0 {
		if resp, err = m.poll(ctx, machine, ids); err != nil {
			return nil, err
		}
		if len(resp.Described) == 0 {
			break
		}
		for _, d := range resp.Described {
			for _, u := range found {
				if u.Runs == nil && u.Report.JobUid == d.Copy.GetJobUid() && u.Report.Index == d.Copy.GetIndex() && u.Report.Attempt == d.Copy.GetAttempt() {
					u.Runs, u.SpecHash = d, specHash(d.Spec)
				}
			}
			ids = slices.DeleteFunc(ids, func(id *borgrpc.CopyID) bool { return proto.Equal(id, d.Copy) })
		}
	}
	return found, nil
}

// poll asks a machine for its full state, as a link shard does, and what some of its
// copies run.
func (m *Master) poll(ctx context.Context, machine string, describe []*borgrpc.CopyID) (*borgrpc.PollResponse, error) {
	var addr string
	var req *borgrpc.PollRequest
	m.cfg.Log.View(func(c *cell.Cell) {
		if x := c.Machine(machine); x != nil {
			addr, req = x.Addr(), linkshard.Build(c, x, m.cfg.CellName, m.cfg.Replica, &linkshard.Known{})
		}
	})
	if req == nil {
		return nil, status.Error(codes.NotFound, "it is not in the cell any more")
	}
	req.Describe = describe
	borglet, err := shardView{m}.Borglet(machine, addr)
	if err != nil {
		return nil, err
	}
	resp, err := borglet.Poll(ctx, req)
	if err == nil && resp.Fenced {
		err = status.Error(codes.FailedPrecondition, "it obeys another master")
	}
	return resp, err
}

func specHash(spec *borgpb.TaskSpec) string {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

func jobOf(u *borgrpc.Unknown) string {
	if u.Runs == nil {
		return ""
	}
	return u.Runs.User + "/" + u.Runs.Job
}

// WhyNotAdopted says why a copy cannot be adopted; empty: it can.
func WhyNotAdopted(c *cell.Cell, u *borgrpc.Unknown) string {
	uid, err := cell.ParseUID(u.Report.JobUid)
	if err != nil {
		return "its uid cannot be read"
	}
	j := c.JobByUID(uid)
	switch {
	case u.Runs == nil:
		return "its borglet does not say what it runs"
	case u.Report.State == int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPING):
		return "it is being stopped"
	case j != nil && j.State() == borgpb.State_STATE_DEAD:
		return "its job is dead"
	case j != nil:
		if t := j.Task(u.Report.Index); t != nil && t.Attempt() > u.Report.Attempt {
			return fmt.Sprintf("attempt %d took its place", t.Attempt())
		}
		return "its job does not have such a task, or its alloc is not there"
	}
	if other := c.Job(cell.JobKey{User: u.Runs.User, Name: u.Runs.Job}); other != nil && other.State() != borgpb.State_STATE_DEAD {
		return fmt.Sprintf("there is another job of that name, %s", other.UID())
	}
	if u.Runs.Alloc != "" && c.AllocByName(u.Runs.Alloc) == nil {
		return "it runs in alloc " + u.Runs.Alloc + ", which the cell does not have"
	}
	return ""
}

// adopt proposes a job for each uid of what was found.
func (m *Master) adopt(ctx context.Context, req *borgrpc.AdoptUnknownRequest, unknown []*borgrpc.Unknown) ([]*borgrpc.UnknownDone, error) {
	var done []*borgrpc.UnknownDone
	var format uint32
	m.cfg.Log.View(func(c *cell.Cell) { format = c.Format() })
	for _, group := range byJob(unknown, req.GetJobs()) {
		d := &borgrpc.UnknownDone{Job: jobOf(group[0]), Copies: uint32(len(group))}
		done = append(done, d)
		op, why := Adoption(format, group)
		if why != "" {
			d.Refusal = refusal(borgpb.RefusalKind_REFUSAL_KIND_STATE, d.Job, "%s", why)
			continue
		}
		d.Copies = uint32(len(op.Copies))
		result, err := m.write(ctx, &borgpb.Op{
			RequestId: req.RequestId + "-" + op.Uid, RequestWallNs: req.RequestWallNs, Command: req.Command, Reason: req.Reason,
			Principal: door.Principal(door.Caller(ctx)), Op: &borgpb.Op_AdoptJob{AdoptJob: op},
		})
		if err != nil {
			return nil, m.grpcError(err)
		}
		d.Refusal = result.GetRefusal()
	}
	return done, nil
}

// notFound refuses the jobs of which no machine told that it runs them.
func notFound(names []string, unknown []*borgrpc.Unknown) (done []*borgrpc.UnknownDone) {
	for _, name := range names {
		if !slices.ContainsFunc(unknown, func(u *borgrpc.Unknown) bool { return jobOf(u) == name }) {
			done = append(done, &borgrpc.UnknownDone{Job: name, Refusal: refusal(borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND, name,
				"no machine that was heard runs a job of this name that the cell does not know")})
		}
	}
	return done
}

// byJob groups what was found by the uid of its job; names are wanted, or all.
func byJob(unknown []*borgrpc.Unknown, names []string) (groups [][]*borgrpc.Unknown) {
	at := make(map[string]int)
	for _, u := range unknown {
		if len(names) > 0 && !slices.Contains(names, jobOf(u)) {
			continue
		}
		i, ok := at[u.Report.JobUid]
		if !ok {
			i = len(groups)
			at[u.Report.JobUid] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], u)
	}
	return groups
}

// Adoption makes a job of copies with one uid, in a cell of that format: of each task the
// latest one, all with the spec of the latest version. Nobody knows how many tasks there
// were: as many as the highest index tells.
func Adoption(format uint32, group []*borgrpc.Unknown) (op *borgpb.AdoptJob, why string) {
	latest := make(map[uint32]*borgrpc.Unknown)
	var newest *borgrpc.Desired
	for _, u := range group {
		if u.WhyNot != "" {
			why = u.WhyNot
			continue
		}
		if old := latest[u.Report.Index]; old == nil || old.Report.Attempt < u.Report.Attempt {
			latest[u.Report.Index] = u
		}
		if newest == nil || newest.Version < u.Runs.Version {
			newest = u.Runs
		}
	}
	if newest == nil {
		return nil, why
	}
	spec := &borgpb.JobSpec{Kind: newest.Kind, Priority: newest.Priority, Task: newest.Spec}
	op = &borgpb.AdoptJob{Uid: group[0].Report.JobUid, User: newest.User, Name: newest.Job}
	for _, u := range group {
		if latest[u.Report.Index] != u {
			continue
		}
		spec.Tasks = max(spec.Tasks, u.Report.Index+1)
		op.Copies = append(op.Copies, linkshard.Found(u.Machine, u.Report, u.Runs))
	}
	if alloc := newest.Alloc; alloc != "" {
		id, err := cell.ParseTaskID(alloc)
		if err != nil {
			return nil, err.Error()
		}
		spec.AllocSet = id.Job.String()
		// Where an update had yet to take some to theirs, all may run where they are.
		spec.AllocByIndex = format >= cell.FormatAllocIndex && newest.AllocByIndex && !slices.ContainsFunc(op.Copies, func(f *borgpb.FoundCopy) bool {
			return f.Alloc != fmt.Sprintf("%s/%d", spec.AllocSet, f.Report.Index)
		})
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		return nil, err.Error()
	}
	op.Spec = data
	return op, ""
}

// stopUnknown proposes to stop what was found, machine by machine.
func (m *Master) stopUnknown(ctx context.Context, req *borgrpc.StopUnknownRequest, unknown []*borgrpc.Unknown) ([]*borgrpc.UnknownDone, error) {
	var done []*borgrpc.UnknownDone
	for _, group := range byJob(unknown, req.GetJobs()) {
		d := &borgrpc.UnknownDone{Job: jobOf(group[0])}
		done = append(done, d)
		on := make(map[string]*borgpb.StopUnknown)
		var machines []string
		for _, u := range group {
			if u.Runs == nil || u.Report.State == int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPING) {
				continue
			}
			if on[u.Machine] == nil {
				on[u.Machine] = &borgpb.StopUnknown{Machine: u.Machine}
				machines = append(machines, u.Machine)
			}
			on[u.Machine].Copies = append(on[u.Machine].Copies, UnknownCopy(u))
		}
		for _, machine := range machines {
			sum := sha256.Sum256([]byte(group[0].Report.JobUid + machine))
			result, err := m.write(ctx, &borgpb.Op{
				RequestId: req.RequestId + "-" + hex.EncodeToString(sum[:8]), RequestWallNs: req.RequestWallNs, Command: req.Command, Reason: req.Reason,
				Principal: door.Principal(door.Caller(ctx)), Op: &borgpb.Op_StopUnknown{StopUnknown: on[machine]},
			})
			if err != nil {
				return nil, m.grpcError(err)
			}
			if d.Refusal = cmp.Or(d.Refusal, result.GetRefusal()); result.GetRefusal() == nil {
				d.Copies += uint32(len(on[machine].Copies))
			}
		}
	}
	return done, nil
}

// UnknownCopy is what the cell is told of a copy that is to be stopped.
func UnknownCopy(u *borgrpc.Unknown) *borgpb.UnknownCopy {
	d := u.Runs
	return &borgpb.UnknownCopy{
		JobUid: u.Report.JobUid, Index: u.Report.Index, Attempt: u.Report.Attempt, User: d.User, Job: d.Job, Kind: d.Kind, Priority: d.Priority,
		Resources: d.Spec.GetResources(), Ports: d.Ports, GraceNs: d.Spec.GetGraceNs(),
	}
}

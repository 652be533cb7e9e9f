package linkshard

import (
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/mutant"
	"borg/proto/borgrpc"
)

// Most machines rest at most times: the cell wants of them what they have. Then
// neither the request nor the comparison has to be made again, which is a quarter of a
// poll's cost; that it is so still is told by the cell's count of a machine's changes
// and by the hash of the borglet's state.

// rested is a poll after which nothing was left to be done.
type rested struct {
	basis
	req *borgrpc.PollRequest
}

// basis is the state of a cell that a request was made from.
type basis struct {
	// As the cell had it. Another object is another cell's.
	machine *cell.Machine
	changes uint64
	// Of another format orders may say more.
	format uint32
}

func basisOf(c *cell.Cell, m *cell.Machine) basis { return basis{m, m.Changes(), c.Format()} }

// rests tells whether the cell has changed nothing about the machine since it was last
// seen to be at rest.
func (k *Known) rests(c *cell.Cell, m *cell.Machine) bool {
	now := basisOf(c, m)
	if mutant.Planted(mutant.OrdersKept) {
		now.changes = k.rested.changes
	}
	return k.rested.basis == now
}

// same tells whether an answer says what the one before it said.
func (k *Known) same(resp *borgrpc.PollResponse) bool {
	return resp.Unchanged && len(resp.Described)+len(resp.VolumesGone)+len(resp.VolumesFound) == 0 && (resp.Spec == nil || proto.Equal(resp.Spec, k.Word))
}

// rest notes whether the machine is at rest after a poll that it has answered: each
// later one would be the same, and come to the same. Not so when the cell has changed
// while the poll was out: its orders are of before.
func (k *Known) rest(c *cell.Cell, m *cell.Machine, req *borgrpc.PollRequest, cmp *Comparison) {
	k.rested = rested{}
	if k.basis != basisOf(c, m) {
		return
	}
	if cmp.Busy || cmp.Down || m.Unheard() || len(cmp.Reports)+len(cmp.Unknown)+len(k.told)+len(k.described) > 0 || cmp.Heard != nil || cmp.Set != nil {
		return
	}
	// Which specs it holds was not known yet.
	if len(req.KnownHash) == 0 {
		return
	}
	// Who has a package that it waits for is told by changes of other machines.
	if len(req.Stops)+len(req.Forget)+len(req.Describe)+len(req.Packages)+len(req.DeleteVolumes) > 0 || len(req.Desired) != len(k.Tasks) {
		return
	}
	for i, t := range k.Tasks {
		// That a file was written is no change of a machine.
		if terminal(t.State) || req.Desired[i].Spec != nil || req.Desired[i].Labels != nil || len(req.Desired[i].Files) > 0 {
			return
		}
	}
	k.rested = rested{k.basis, req}
}

// request makes the poll for a machine, or repeats the last one as of now.
func (k *Known) request(c *cell.Cell, m *cell.Machine, cellName string, replica uint64) *borgrpc.PollRequest {
	if k.rests(c, m) {
		return &borgrpc.PollRequest{
			Fence: FenceOf(c), Machine: k.rested.req.Machine, Desired: k.rested.req.Desired, KnownHash: k.Hash, Replica: replica,
			AllocNetworks: k.rested.req.AllocNetworks, KeepAllocs: k.rested.req.KeepAllocs,
			KeepVolumes: k.rested.req.KeepVolumes,
		}
	}
	k.asked++
	k.basis = basisOf(c, m)
	return Build(c, m, cellName, replica, k)
}

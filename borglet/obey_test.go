package borglet

import (
	"errors"
	"slices"
	"testing"

	"borg/proto/borgrpc"
)

// TestMasterObeysWhatIsKept: an order is obeyed only once its fence is kept, and
// never one that is older.
func TestMasterObeysWhatIsKept(t *testing.T) {
	core := NewCore(CoreConfig{Backoff: DefaultBackoff()})
	m := Master{}
	var kept []Fence
	keep := func(f Fence) error { kept = append(kept, f); return nil }
	poll := func(term, index uint64, save func(Fence) error, stops ...*borgrpc.Stop) (*borgrpc.PollResponse, []Effect, error) {
		return m.Poll(core, Now{MonoNs: 1}, &borgrpc.PollRequest{
			Machine: "m1", Fence: &borgrpc.Fence{CellId: "c", Epoch: 1, Term: term, Index: index}, Stops: stops,
		}, save)
	}
	stop := &borgrpc.Stop{Copy: &borgrpc.CopyID{JobUid: "1-2-0", Attempt: 1}}

	full := errors.New("no space")
	if _, effects, err := poll(3, 10, func(Fence) error { return full }, stop); !errors.Is(err, full) || len(effects) > 0 {
		t.Errorf("a fence that could not be kept: %d effects, %v", len(effects), err)
	}
	if !m.Fence.Equal(Fence{}) {
		t.Errorf("the fence is %+v though it was not kept", m.Fence)
	}
	resp, effects, err := poll(3, 10, keep, stop)
	if err != nil || resp.Fenced || len(effects) == 0 || len(resp.Tasks) != 1 || len(kept) != 1 {
		t.Errorf("the first poll: %v, %d effects, kept %v, %v", resp, len(effects), kept, err)
	}
	resp, effects, err = poll(3, 9, keep, stop)
	if err != nil || !resp.Fenced || len(effects) > 0 || len(kept) != 1 || resp.Highest.GetIndex() != 10 {
		t.Errorf("an older poll: %v, %d effects, kept %v, %v", resp, len(effects), kept, err)
	}
	if _, _, err = m.Poll(core, Now{}, &borgrpc.PollRequest{Machine: "m1", Fence: &borgrpc.Fence{CellId: "d", Term: 99}}, keep); err == nil {
		t.Error("another cell is obeyed")
	}
}

// TestRemovedReplicasAreKept: what a borglet was told of replicas that were taken
// out is kept with its fence before it counts; only polls that are obeyed add to
// it, and none of the same epoch takes from it.
func TestRemovedReplicasAreKept(t *testing.T) {
	core := NewCore(CoreConfig{Backoff: DefaultBackoff()})
	m := Master{}
	dir := t.TempDir()
	poll := func(epoch, term, index uint64, save func(Fence) error, belief *borgrpc.Belief) error {
		_, _, err := m.Poll(core, Now{MonoNs: 1}, &borgrpc.PollRequest{
			Machine: "m1", Fence: &borgrpc.Fence{CellId: "c", Epoch: epoch, Term: term, Index: index}, Belief: belief,
		}, save)
		return err
	}
	keep := func(f Fence) error { return f.Save(dir) }
	many := make([]uint64, maxRemoved+10)
	for i := range many {
		many[i] = uint64(i + 1)
	}
	full := errors.New("no space")
	for _, step := range []struct {
		what               string
		epoch, term, index uint64
		belief             *borgrpc.Belief
		save               func(Fence) error
		want               []uint64
	}{
		{"the first master", 1, 3, 10, &borgrpc.Belief{Removed: []uint64{4}}, keep, []uint64{4}},
		{"one that knows more, at the same place", 1, 3, 10, &borgrpc.Belief{Removed: []uint64{4, 2}}, keep, []uint64{2, 4}},
		{"one that has heard of it later", 1, 3, 11, &borgrpc.Belief{Removed: []uint64{4}}, keep, []uint64{2, 4}},
		{"one that was deposed", 1, 2, 99, &borgrpc.Belief{Removed: []uint64{1, 2, 3, 4, 5}}, keep, []uint64{2, 4}},
		{"one that is behind", 1, 3, 9, &borgrpc.Belief{Removed: []uint64{5}}, keep, []uint64{2, 4}},
		{"one that says nothing of it", 1, 3, 12, nil, keep, []uint64{2, 4}},
		{"one that knows of nobody", 1, 4, 12, &borgrpc.Belief{}, keep, []uint64{2, 4}},
		{"on a full disk", 1, 4, 13, &borgrpc.Belief{Removed: []uint64{6}}, func(Fence) error { return full }, []uint64{2, 4}},
		{"a later epoch, of an older build", 2, 1, 1, nil, keep, []uint64{2, 4}},
		{"a later epoch", 3, 1, 1, &borgrpc.Belief{Removed: []uint64{9}}, keep, []uint64{9}},
		{"more than are kept", 3, 1, 2, &borgrpc.Belief{Removed: many}, keep, many[10:]},
	} {
		if err := poll(step.epoch, step.term, step.index, step.save, step.belief); err != nil && !errors.Is(err, full) {
			t.Errorf("%s: %v", step.what, err)
		}
		if !slices.Equal(m.Fence.Removed, step.want) {
			t.Errorf("%s: the replicas that were taken out are %v, want %v", step.what, m.Fence.Removed, step.want)
		}
		if kept, err := LoadFence(dir); err != nil || !kept.Equal(m.Fence) {
			t.Errorf("%s: kept is %+v, %v, want %+v", step.what, kept, err, m.Fence)
		}
	}
}

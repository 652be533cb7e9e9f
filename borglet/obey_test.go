package borglet

import (
	"errors"
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
	if m.Fence != (Fence{}) {
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

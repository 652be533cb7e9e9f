package checkpoint

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.etcd.io/raft/v3/raftpb"
)

// TestWhatIsReadIsKept: after a sync that failed the kernel shows what the disk does not
// have, and takes it for written. Whatever a store shows when it was opened after that,
// it must have written itself: its replica answers for it from then on.
func TestWhatIsReadIsKept(t *testing.T) {
	mem, failing := vfs.NewCrashableMem(), false
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if failing && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
			return errorfs.ErrInjected
		}
		return nil
	}))
	s := newStore(t, fs)
	if err := s.Append([][]*raftpb.Entry{{entry(2, 1, "kept")}}, hardState(1, 1, 2), true); err != nil {
		t.Fatal(err)
	}
	failing = true
	if err := s.Append([][]*raftpb.Entry{{entry(3, 1, "not synced")}}, hardState(1, 1, 2), true); err == nil {
		t.Fatal("a sync that fails is not told")
	}
	if err := s.Append([][]*raftpb.Entry{{entry(4, 1, "later")}}, nil, true); err == nil {
		t.Fatal("it is written after a sync that failed")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	failing = false
	s = openStore(t, fs)
	shown, err := s.LastIndex()
	if err != nil || shown != 3 {
		t.Fatalf("after the sync that failed the log ends at %d, %v; the test is for what was written and not synced, 3", shown, err)
	}
	s2 := openStore(t, mem.CrashClone(vfs.CrashCloneCfg{}))
	if kept, err := s2.LastIndex(); err != nil || kept != shown {
		t.Errorf("a store showed a log up to %d, and has it up to %d after a power failure, %v", shown, kept, err)
	}
	if err := errors.Join(s.Close(), s2.Close()); err != nil {
		t.Fatal(err)
	}
}

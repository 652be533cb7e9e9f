package replica

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/proto/borgpb"
)

// savedCell is a checkpoint file of a cell with one machine.
func savedCell(t *testing.T) []byte {
	t.Helper()
	c := cell.New("the-cell", 1)
	op, err := proto.Marshal(&borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: "m1", Spec: &borgpb.MachineSpec{
		Addr: "m1:7101", Capacity: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30}, PortFirst: 20000, PortLast: 20999,
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	entry, err := proto.Marshal(&borgpb.Entry{WallTimeNs: 1_700_000_000_000_000_000, Ops: [][]byte{op}})
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(7, 3, entry)
	d := c.Digest()
	var file bytes.Buffer
	w, err := checkpoint.NewWriter(&file, &borgpb.CheckpointHeader{
		CellFormat: c.Format(), CellName: "east", CellId: c.ID(), Epoch: 1, Index: 7, Term: 3, WallTimeNs: c.WallNs(), Digest: d[:],
		Voters: []uint64{1, 2}, Members: []*borgpb.Member{{Id: 1, Addr: "a:1"}, {Id: 2, Addr: "b:1"}}, Removed: []uint64{9},
	})
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range c.Records() {
		if err := w.Add(k, v); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// TestRestoredDirectory: a directory that was made of a checkpoint opens as the cell
// that was restored, at its place in the log, with the new members.
func TestRestoredDirectory(t *testing.T) {
	c, h, err := ReadCheckpoint(bytes.NewReader(savedCell(t)))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Restore(2); err != nil {
		t.Fatal(err)
	}
	cfg := checkpoint.Config{Dir: filepath.Join(t.TempDir(), "2")}
	id := &borgpb.ReplicaIdentity{CellName: "east", CellId: "the-cell", Epoch: 2, Replica: 2, Members: []*borgpb.Member{{Id: 2, Addr: "b:2"}, {Id: 3, Addr: "c:2"}}}
	if err := Restore(cfg, id, h, c); err != nil {
		t.Fatal(err)
	}
	if err := Restore(cfg, id, h, c); err == nil {
		t.Error("a directory was restored twice")
	}
	found, err := checkpoint.ReadIdentity(nil, cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	store, err := checkpoint.Open(cfg, found)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	again, err := LoadCell(store)
	if err != nil {
		t.Fatal(err)
	}
	if again.Digest() != c.Digest() || again.Epoch() != 2 || !bytes.Equal(found.BeganDigest, store.Header().Digest) {
		t.Errorf("the directory holds another cell: epoch %d", again.Epoch())
	}
	now := store.Header()
	if now.Index != 7 || now.Term != 3 || now.Epoch != 2 || store.HardState().GetCommit() != 7 {
		t.Errorf("the log begins after %v", now)
	}
	if want := []uint64{1, 9}; !slices.Equal(now.Removed, want) || !slices.Equal(now.Voters, []uint64{2, 3}) {
		t.Errorf("voters %v, removed %v; want %v removed", now.Voters, now.Removed, want)
	}
}

// TestReadCheckpointRefuses: a wrong byte, a missing end.
func TestReadCheckpointRefuses(t *testing.T) {
	file := savedCell(t)
	for at := range file {
		bad := bytes.Clone(file)
		bad[at] ^= 1
		if _, _, err := ReadCheckpoint(bytes.NewReader(bad)); err == nil {
			t.Errorf("byte %d of %d is wrong, and the file is taken", at, len(file))
		}
		if _, _, err := ReadCheckpoint(bytes.NewReader(file[:at])); err == nil {
			t.Errorf("the file ends at byte %d of %d, and is taken", at, len(file))
		}
	}
}

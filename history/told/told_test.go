package told

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/watch"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// heard is what a watch of machines is told of a cell to which three are added, and the
// past of that cell.
func heard(t *testing.T) (*Past, watch.Query, []*borgrpc.WatchResponse) {
	t.Helper()
	c, past, hub := cell.New("watched", 1), NewPast(), watch.New(watch.Config{})
	hub.Reset(c)
	q := watch.Query{Kind: borgpb.ObjectKind_OBJECT_KIND_MACHINE}
	w, err := hub.Watch(q, nil, func() {})
	if err != nil {
		t.Fatal(err)
	}
	var all []*borgrpc.WatchResponse
	for _, name := range []string{"", "a", "b", "c"} {
		e := &borgpb.Entry{CellTimeNs: int64(c.Index()+1) * 1e6, WallTimeNs: 1_800_000_000e9}
		if name != "" {
			op, err := proto.Marshal(&borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Spec: &borgpb.MachineSpec{Addr: name + ":1", Capacity: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30}}}},
				RequestId: "request-" + name, RequestWallNs: e.WallTimeNs, Principal: &borgpb.Principal{User: "alice", Role: borgpb.Role_ROLE_USER}})
			if err != nil {
				t.Fatal(err)
			}
			e.Ops = [][]byte{op}
		}
		data, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if results, _ := c.Apply(c.Index()+1, 1, data); len(results) > 0 && results[0].Refusal != nil {
			t.Fatal(results[0].Refusal)
		}
		past.Look(c)
		hub.Applied(c)
		for m, again, err := w.Next(); m != nil || again; m, again, err = w.Next() {
			if err != nil {
				t.Fatal(err)
			}
			if m != nil {
				all = append(all, m.Proto())
			}
		}
	}
	if len(all) != 4 {
		t.Fatalf("%d messages, want the state and three changes", len(all))
	}
	return past, q, all
}

// TestWatcherFindsWhatIsWrong: what a hub tells holds, and what is left out, told twice
// or altered does not.
func TestWatcherFindsWhatIsWrong(t *testing.T) {
	tests := []struct {
		name, property string
		alter          func([]*borgrpc.WatchResponse) []*borgrpc.WatchResponse
	}{
		{"as it is", "", func(m []*borgrpc.WatchResponse) []*borgrpc.WatchResponse { return m }},
		{"one is left out", "reliable", func(m []*borgrpc.WatchResponse) []*borgrpc.WatchResponse { return append(m[:2:2], m[3]) }},
		{"one is told twice", "ordered", func(m []*borgrpc.WatchResponse) []*borgrpc.WatchResponse { return append(m[:3:3], m[2:]...) }},
		{"one has a change twice", "unique", func(m []*borgrpc.WatchResponse) []*borgrpc.WatchResponse {
			m[1].Changes = append(m[1].Changes, m[1].Changes...)
			return m
		}},
		{"one is no creation", "isCreate", func(m []*borgrpc.WatchResponse) []*borgrpc.WatchResponse { m[2].Changes[0].IsCreate = false; return m }},
		{"a bookmark is too far", "bookmarkable", func(m []*borgrpc.WatchResponse) []*borgrpc.WatchResponse {
			return append(m[:2:2], &borgrpc.WatchResponse{Index: m[2].Index})
		}},
	}
	for _, tt := range tests {
		past, q, all := heard(t)
		w := past.Watcher(q)
		var err error
		for _, m := range tt.alter(all) {
			if err = w.Take(m); err != nil {
				break
			}
		}
		if tt.property == "" && (err != nil || w.Left() != nil || w.Told() != all[3].Index) {
			t.Errorf("%s: %v, %v, told up to %d", tt.name, err, w.Left(), w.Told())
		}
		if tt.property != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.property)) {
			t.Errorf("%s: %v, want what begins with %s", tt.name, err, tt.property)
		}
	}
}

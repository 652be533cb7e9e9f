package cell

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// FuzzApply commits any bytes: as an entry, and as an op in an entry. Two cells
// answer alike and stay sound, and neither panics.
func FuzzApply(f *testing.F) {
	base := richCell(f, 250)
	g := generator{testLog: &testLog{t: f, c: base, term: 1, wallNs: base.WallNs()}, r: newRand(5)}
	for range 40 {
		op := g.next()
		f.Add(op)
		f.Add(marshal(f, &borgpb.Entry{CellTimeNs: 1 << 40, WallTimeNs: g.wallNs, Ops: [][]byte{op}}))
	}
	f.Add([]byte{})
	f.Add([]byte("not an entry"))
	type kv struct{ k, v string }
	var records []kv
	for k, v := range base.Records() {
		records = append(records, kv{string(k), string(v)})
	}
	load := func(t *testing.T) *Cell {
		c, err := Load(func(yield func(k, v []byte) bool) {
			for _, r := range records {
				if !yield([]byte(r.k), []byte(r.v)) {
					return
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, b := load(t), load(t)
		inside := marshal(t, &borgpb.Entry{CellTimeNs: a.TimeNs() + second, WallTimeNs: a.WallNs() + second, Ops: [][]byte{data}})
		for _, entry := range [][]byte{data, inside} {
			index := a.Index() + 1
			ra, ea := a.Apply(index, 1, entry)
			rb, eb := b.Apply(index, 1, entry)
			if len(ra) != len(rb) || len(ea) != len(eb) {
				t.Fatalf("%d and %d results, %d and %d events", len(ra), len(rb), len(ea), len(eb))
			}
			for i := range ra {
				if !proto.Equal(ra[i], rb[i]) {
					t.Fatalf("%v and %v", ra[i], rb[i])
				}
				if ra[i].Refusal.GetKind() == borgpb.RefusalKind_REFUSAL_KIND_INTERNAL {
					t.Fatal(ra[i].Refusal)
				}
			}
			if err := a.Check(); err != nil {
				t.Fatal(err)
			}
		}
		if a.Digest() != b.Digest() {
			t.Fatalf("digests %x and %x", a.Digest(), b.Digest())
		}
		reload(t, a)
	})
}

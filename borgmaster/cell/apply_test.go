package cell

import (
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// An entry is read as it is unmarshaled, whatever bytes it is.
func TestEntryIsReadAsUnmarshaled(t *testing.T) {
	field := func(n protowire.Number, kind protowire.Type) []byte { return protowire.AppendTag(nil, n, kind) }
	number := func(n protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(field(n, protowire.VarintType), v)
	}
	text := func(n protowire.Number, s string) []byte {
		return protowire.AppendString(field(n, protowire.BytesType), s)
	}
	parts := [][]byte{
		number(1, 7), number(1, 1<<63), number(2, 1<<62), number(2, 0), number(3, 5), number(4, 1), number(0, 1), number(1<<29-1, 1),
		text(3, ""), text(3, "op"), text(3, string(make([]byte, 300))), text(1, "x"), text(4, "y"),
		protowire.AppendFixed64(field(1, protowire.Fixed64Type), 1), protowire.AppendFixed32(field(3, protowire.Fixed32Type), 1),
		field(3, protowire.StartGroupType), field(3, protowire.EndGroupType), field(1, protowire.VarintType), field(3, protowire.BytesType),
		{0xff}, {0x80, 0x01}, {0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, {0x8a, 0x00}, {0x1a, 0x81, 0x00, 0x61}, {0x1f}, {0x0e},
	}
	r := rand.New(rand.NewPCG(1, 1))
	good := 0
	for range 20_000 {
		var data []byte
		for range r.IntN(6) {
			p := parts[r.IntN(len(parts))]
			if r.IntN(2) == 0 {
				// Those that an entry may have.
				p = [][]byte{parts[0], parts[1], parts[2], parts[8], parts[9], parts[10]}[r.IntN(6)]
			}
			data = append(data, p...)
		}
		if r.IntN(4) == 0 {
			data = data[:r.IntN(len(data)+1)]
		}
		want := new(borgpb.Entry)
		known := proto.Unmarshal(data, want) == nil && !unknown(want)
		got, ok := readEntry(data)
		if ok != known || ok && !proto.Equal(got, want) {
			t.Fatalf("%x is read as %v, %v, and unmarshaled as %v, %v", data, got, ok, want, known)
		}
		if ok && len(want.Ops) > 0 {
			good++
		}
	}
	if good < 100 {
		t.Errorf("%d entries with ops were read", good)
	}
}

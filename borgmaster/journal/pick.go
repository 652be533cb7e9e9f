package journal

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Pick says which blocks a reader needs, and what of them, so that others need not be decoded: that takes twenty
// times as long as reading them. The zero Pick is all.
type Pick struct {
	// Text is in everything that the reader wants: blocks without it are left out. Empty: any.
	Text string
	// Gaps leaves out all but the gaps, and of entries all but their indexes.
	Gaps bool
}

// wants reports whether the reader wants a block that is encoded so.
func (p Pick) wants(data []byte) bool {
	return p.Text == "" || bytes.Contains(data, []byte(p.Text))
}

// decode reads a block; ok is false when it was not written so.
func (p Pick) decode(data []byte) (b *borgpb.JournalBlock, ok bool) {
	b = new(borgpb.JournalBlock)
	if !p.Gaps {
		return b, proto.Unmarshal(data, b) == nil
	}
	const entries, gaps = protowire.Number(1), protowire.Number(3)
	ok = cell.EachField(data, func(number protowire.Number, _ uint64, body []byte) bool {
		switch number {
		case entries:
			index, ok := indexOf(body)
			b.Entries = append(b.Entries, &borgpb.JournalEntry{Index: index})
			return ok
		case gaps:
			g := new(borgpb.AuditHole)
			b.Gaps = append(b.Gaps, g)
			return proto.Unmarshal(body, g) == nil
		}
		return true
	})
	return b, ok
}

// indexOf reads the index of an entry.
func indexOf(data []byte) (index uint64, ok bool) {
	const field = protowire.Number(1)
	ok = cell.EachField(data, func(number protowire.Number, n uint64, _ []byte) bool {
		if number == field {
			index = n
		}
		return true
	})
	return index, ok
}

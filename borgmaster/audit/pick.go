package audit

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"
)

// Pick says which batches a reader needs, so that others need not be decoded, which takes longer than reading them. The
// zero Pick is all.
type Pick struct {
	// Text is in every record that the reader wants. Holes, what was dropped and what was refused are
	// read in any case. Empty: any.
	Text string
	// Step is called before each batch; an error ends the reading. Nil: nothing is called.
	Step func() error
}

func (p Pick) step() error {
	if p.Step == nil {
		return nil
	}
	return p.Step()
}

// wants reports whether the reader wants a batch that is encoded so.
func (p Pick) wants(data []byte) bool {
	return p.Text == "" || bytes.Contains(data, []byte(p.Text)) || !isPlain(data)
}

// isPlain reports whether a batch says what was done, and of nothing else.
func isPlain(data []byte) bool {
	const refusal, hole, drop = protowire.Number(12), protowire.Number(19), protowire.Number(843)
	if len(data) == 0 {
		return false
	}
	for len(data) > 0 {
		_, kind, used := protowire.ConsumeTag(data)
		if used < 0 || kind != protowire.BytesType {
			return false
		}
		record, size := protowire.ConsumeBytes(data[used:])
		if size < 0 {
			return false
		}
		data = data[used+size:]
		for len(record) > 0 {
			number, _, used := protowire.ConsumeField(record)
			if used < 0 || number == refusal || number == hole || number == drop {
				return false
			}
			record = record[used:]
		}
	}
	return true
}

package audit

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"

	"borg/borgmaster/cell"
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

// Fields of borg.AuditBatch and, from the second on, of borg.AuditRecord.
const (
	recordsField protowire.Number = 1
	refusalField protowire.Number = 12
	holeField    protowire.Number = 19
	dropField    protowire.Number = 843
)

// isPlain reports whether a batch says what was done, and nothing else.
func isPlain(data []byte) bool {
	return len(data) > 0 && cell.EachField(data, func(field protowire.Number, _ uint64, record []byte) bool {
		return field == recordsField && record != nil && cell.EachField(record, func(field protowire.Number, _ uint64, _ []byte) bool {
			return field != refusalField && field != holeField && field != dropField
		})
	})
}

package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// TestReaderBomb: a file whose chunks become much more than they are stored in ends at the
// bound, as damaged, with the place.
func TestReaderBomb(t *testing.T) {
	in, out := io.Pipe()
	defer in.Close()
	value := make([]byte, 4<<20-16)
	go func() {
		w, err := NewWriter(out, &borgpb.CheckpointHeader{CellName: "test"})
		for i := 0; err == nil && i < 300; i++ {
			err = w.Add(fmt.Appendf(nil, "%08d", i), value)
		}
		out.CloseWithError(err)
	}()
	r, err := NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	read := int64(0)
	for _, v := range r.Records() {
		read += int64(len(v))
	}
	if !errors.Is(r.Err(), ErrDamaged) || !strings.Contains(r.Err().Error(), "becomes more than 1073741824 bytes") {
		t.Errorf("after %d bytes: %v", read, r.Err())
	}
	if read > freeUnpackedBytes {
		t.Errorf("%d bytes were yielded; the bound is %d", read, freeUnpackedBytes)
	}
}

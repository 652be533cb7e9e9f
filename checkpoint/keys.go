package checkpoint

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3/raftpb"
)

// The keys of a replica's database. The first byte is the space.
var (
	// keyHeader holds the CheckpointHeader that the records stand for.
	keyHeader = []byte("a")
	// keyHard holds raft's hard state.
	keyHard = []byte("h")
	// keyIdentity holds the ReplicaIdentity whose database it is.
	keyIdentity = []byte("i")
	// keyStart holds index and term of the entry before the first of the log.
	keyStart = []byte("s")

	// Entries of the log: space and index, big-endian.
	logSpace    = byte('l')
	logSpaceEnd = []byte{logSpace + 1}
	// Records of the cell: space and the record's key.
	recordSpace    = byte('r')
	recordSpaceEnd = []byte{recordSpace + 1}
)

func logKey(index uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{logSpace}, index)
}

func recordKey(buf, key []byte) []byte {
	return append(append(buf[:0], recordSpace), key...)
}

// putEntry encodes what of an entry is not in its key, into the batch itself: data may
// be large.
func putEntry(b *pebble.Batch, e *raftpb.Entry) error {
	var room [1 + binary.MaxVarintLen64]byte
	head := binary.AppendUvarint(append(room[:0], byte(e.GetType())), e.GetTerm())
	key, data := logKey(e.GetIndex()), e.GetData()
	set := b.SetDeferred(len(key), len(head)+len(data))
	copy(set.Key, key)
	copy(set.Value[copy(set.Value, head):], data)
	return set.Finish()
}

// decodeEntry copies what it keeps of value.
func decodeEntry(index uint64, value []byte) (*raftpb.Entry, error) {
	if len(value) < 2 {
		return nil, fmt.Errorf("log entry %d has %d bytes", index, len(value))
	}
	term, n := binary.Uvarint(value[1:])
	if n <= 0 {
		return nil, fmt.Errorf("log entry %d has no term", index)
	}
	e := &raftpb.Entry{Type: raftpb.EntryType(value[0]).Enum(), Term: &term, Index: &index}
	if data := value[1+n:]; len(data) > 0 {
		e.Data = append([]byte(nil), data...)
	}
	return e, nil
}

func encodeStart(index, term uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, index), term)
}

func decodeStart(b []byte) (index, term uint64, err error) {
	if len(b) != 16 {
		return 0, 0, fmt.Errorf("the start of the log has %d bytes instead of 16", len(b))
	}
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), nil
}

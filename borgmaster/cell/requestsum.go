package cell

import (
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"

	"borg/proto/borgpb"
)

// payloadField is the first field of an Op that says what is asked for. Those before it
// say who asks, when and why.
const payloadField = 10

// masterFields are the fields that a master fills in, by the number of the op: their
// values differ between the tries of one request. They take part in a sum only as being
// there.
var masterFields = map[protowire.Number][]protowire.Number{
	// AddMachine.spec: the borglet is asked at each try. Its address takes part.
	addMachineField: {machineSpecField},
	// Revoke.certificates_wall_ns: a time to come becomes the present.
	61: {3},
	// SetSecret: version, key_id, sealed. The master compares the values.
	70: {3, 4, 5},
	// AdoptJob: spec, copies. The machines are asked at each try.
	152: {4, 5},
	// StopUnknown: copies.
	153: {2},
}

const (
	addMachineField  = 10
	machineSpecField = 4
	machineAddrField = 1
)

// requestSum is a hash of what an encoded op asks for. It is the same for all tries of
// one request, and differs between requests: it finds mistakes, and a user who finds two ops of
// one sum is told the answer to the first. The encoding sorts the entries of maps.
func requestSum(op []byte) uint64 {
	// Most ops fit into room, and allocate nothing.
	var room [512]byte
	b := slices.Grow(room[:0], len(op))
	write := func(field protowire.Number, number uint64, value []byte) {
		b = binary.AppendUvarint(b, uint64(field))
		b = binary.AppendUvarint(b, number)
		b = binary.AppendUvarint(b, uint64(len(value)))
		b = append(b, value...)
	}
	everyField(op, func(field protowire.Number, number uint64, value []byte) {
		if field != unreadField && field < payloadField {
			return
		}
		filled := masterFields[field]
		if filled == nil {
			write(field, number, value)
			return
		}
		write(field, 0, nil)
		var last protowire.Number
		everyField(value, func(inner protowire.Number, number uint64, value []byte) {
			switch {
			case !slices.Contains(filled, inner):
				write(inner, number, value)
			case inner != last:
				// One of a repeated field is enough.
				write(inner, 0, nil)
			}
			if field == addMachineField && inner == machineSpecField {
				everyField(value, func(inner protowire.Number, number uint64, value []byte) {
					if inner == machineAddrField {
						write(inner, number, value)
					}
				})
			}
			last = inner
		})
	})
	return xxhash.Sum64(b)
}

// sumOf is the requestSum of an op that has a request id.
func sumOf(op *borgpb.Op, data []byte) uint64 {
	if op.RequestId == "" {
		return 0
	}
	return requestSum(data)
}

package cell

import "google.golang.org/protobuf/encoding/protowire"

// EachField calls f for each field of a message that consists of varints and of bytes, of
// which value is nil and not nil. False: it is no such message, or f wants no more of it.
func EachField(data []byte, f func(field protowire.Number, number uint64, value []byte) bool) bool {
	for len(data) > 0 {
		field, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return false
		}
		data = data[n:]
		var number uint64
		var value []byte
		switch kind {
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(data)
		default:
			return false
		}
		if n < 0 || !f(field, number, value) {
			return false
		}
		data = data[n:]
	}
	return true
}

// unreadField is the number under which everyField yields bytes that are no field.
const unreadField = 0

// everyField yields all fields of a message, of every wire type, unlike eachField. Bytes of an
// unread remainder come as one value: nothing that was sent is left out of a sum.
func everyField(data []byte, f func(field protowire.Number, number uint64, value []byte)) {
	for len(data) > 0 {
		field, kind, head := protowire.ConsumeTag(data)
		n := -1
		if head > 0 {
			n = protowire.ConsumeFieldValue(field, kind, data[head:])
		}
		if n < 0 {
			f(unreadField, 0, data)
			return
		}
		value := data[head : head+n]
		switch kind {
		case protowire.VarintType:
			number, _ := protowire.ConsumeVarint(value)
			f(field, number, nil)
		case protowire.BytesType:
			value, _ = protowire.ConsumeBytes(value)
			f(field, 0, value)
		default:
			f(field, uint64(kind), value)
		}
		data = data[head+n:]
	}
}

package client

import (
	"crypto/rand"
	"fmt"
	"time"
)

// Crockford's base 32: no I, L, O, U.
const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// NewRequestID returns a new request id and the wall time that goes with it.
// An id has 26 characters: 48 bits of milliseconds, so that ids sort by time,
// and 80 random bits.
func NewRequestID(now time.Time) (id string, wallNs int64) {
	var raw [16]byte
	ms := uint64(now.UnixMilli())
	for i := range 6 {
		raw[i] = byte(ms >> (40 - 8*i))
	}
	rand.Read(raw[6:]) // never fails: the program ends instead
	// 130 bits for 128: two zero bits go first.
	var out [26]byte
	var bits, n uint
	bits, n = 0, 2
	at := 0
	for _, b := range raw {
		bits = bits<<8 | uint(b)
		n += 8
		for n >= 5 {
			n -= 5
			out[at] = alphabet[bits>>n&31]
			at++
		}
	}
	return string(out[:]), now.UnixNano()
}

func taskName(user, name string, index uint32) string {
	return fmt.Sprintf("%s/%s/%d", user, name, index)
}

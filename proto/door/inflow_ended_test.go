package door

import (
	"sync/atomic"
	"testing"
)

// TestEndedCallsAreForgotten: a connection keeps nothing of many calls that have ended, whether their
// clients ended them with their heads, with a message, or not at all.
func TestEndedCallsAreForgotten(t *testing.T) {
	const endHeaders = 0x4
	for _, tt := range []struct {
		name string
		// What comes before the call is let in, and then.
		head, body func(stream uint32) []byte
	}{
		{"head alone", func(stream uint32) []byte {
			return frame(frameHeaders, endHeaders|flagEndStream, stream, make([]byte, 40))
		}, nil},
		{"head in parts alone", func(stream uint32) []byte {
			return append(frame(frameHeaders, flagEndStream, stream, make([]byte, 40)), frame(frameContinuation, endHeaders, stream, make([]byte, 40))...)
		}, nil},
		{"head and message", func(stream uint32) []byte {
			return frame(frameHeaders, endHeaders, stream, make([]byte, 40))
		}, func(stream uint32) []byte { return frame(frameData, flagEndStream, stream, message(3, 3)) }},
		{"no end", func(stream uint32) []byte {
			return frame(frameHeaders, endHeaders, stream, make([]byte, 40))
		}, func(stream uint32) []byte { return frame(frameData, 0, stream, message(3, 3)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newInflow(newCrowd(), newPresentUser(""))
			f.preface = 0
			feed := func(b []byte) {
				if err := f.feed(b); err != nil {
					t.Fatal(err)
				}
			}
			most := 0
			for n := range uint32(1_000) {
				stream := 2*n + 1
				feed(tt.head(stream))
				f.called(plainRequestBytes)
				r := f.begin(plainRequestBytes, new(atomic.Int32))
				r.run()
				if tt.body != nil {
					feed(tt.body(stream))
				}
				r.end()
				f.out.feed(frame(frameHeaders, endHeaders|flagEndStream, stream, make([]byte, 10)))
				most = max(most, len(f.calls))
			}
			if most > minSweep {
				t.Errorf("up to %d calls are kept, none of which is under way", most)
			}
			if tt.name != "no end" && len(f.calls) > 0 {
				t.Errorf("%d calls that have ended are kept", len(f.calls))
			}
		})
	}
}

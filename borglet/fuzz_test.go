package borglet

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// withSums puts right the checksums of an index of times: otherwise the first mark that
// chance changes would end it.
func withSums(index []byte) []byte {
	b := append([]byte(timesMagic), index...)
	for at := len(timesMagic); at+markBytes <= len(b); at += markBytes {
		binary.LittleEndian.PutUint32(b[at+28:], crc32.Checksum(b[at:at+28], castagnoli))
	}
	return b
}

// FuzzReadLog: whatever the index of the times says and whatever part is asked for, what
// is sent is a part of what was written, each byte once and in order.
func FuzzReadLog(f *testing.F) {
	marks := logTimes{mark(10, 0, 0, 1), mark(20, 5, 1, 1), mark(30, 9, 1, 2), mark(40, 30, 1, 2)}.encode()[len(timesMagic):]
	f.Add(marks, []byte("one\ntwo\nthree\nfour\nfive\nsix\nseven\n"), int64(0), int64(0), int64(0), uint32(0), true)
	f.Add(marks, []byte("one\ntwo\nthree\nfour\nfive\n"), int64(3), int64(20), int64(25), uint32(2), true)
	f.Add(marks[:50], bytes.Repeat([]byte("a long line\n"), 300), int64(-1), int64(1<<62), int64(1), uint32(1), false)
	f.Add([]byte(nil), []byte("x"), int64(1<<62), int64(-1), int64(-1), uint32(9), false)
	f.Fuzz(func(t *testing.T, index, output []byte, from, tail, since int64, run uint32, timed bool) {
		dir := t.TempDir()
		for name, text := range map[string][]byte{timesFile: withSums(index), stdoutFile: output} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r, err := openLog(func() (string, error) { return dir, nil }, borgrpc.LogStream_LOG_STREAM_STDOUT, &borgrpc.ReadLogRequest{
			FromOffset: from, TailBytes: tail, SinceWallNs: since, Run: run, Times: timed,
		})
		if err != nil {
			return
		}
		defer r.close()
		at, first := r.at, true
		err = r.drain(t.Context(), func(resp *borgrpc.ReadLogResponse) error {
			// A hole at the start, or an index that begins before the file, is skipped.
			if first && resp.GetLostBytes() > 0 {
				at += resp.GetLostBytes()
			}
			first = false
			data := resp.GetData()
			if len(data) == 0 || at < 0 || at+int64(len(data)) > int64(len(output)) || !bytes.Equal(data, output[at:at+int64(len(data))]) {
				t.Fatalf("at %d of %d bytes it sends %q", at, len(output), data)
			}
			if timed && resp.GetOffset() != at {
				t.Fatalf("what is at %d is said to be at %d", at, resp.GetOffset())
			}
			at += int64(len(data))
			return nil
		})
		if err == nil && r.end < 0 && at < int64(len(output)) {
			t.Errorf("it ends at %d of %d bytes", at, len(output))
		}
	})
}

// FuzzRecord: whatever the files of a copy hold, they are read or refused; what is read
// is written and read again as it was, and a core can go on from it.
func FuzzRecord(f *testing.F) {
	id := ID{"1-5-0", 3, 2}
	dir := f.TempDir()
	s, err := OpenStore(dir)
	if err != nil {
		f.Fatal(err)
	}
	for _, r := range []Record{full(id), {ID: id, Desired: sample(), Boot: "b", Run: 1}} {
		if err := s.Save(r); err != nil {
			f.Fatal(err)
		}
		spec, err := os.ReadFile(filepath.Join(s.TaskDir(id), "spec.json"))
		if err != nil {
			f.Fatal(err)
		}
		intent, err := os.ReadFile(filepath.Join(s.TaskDir(id), "intent"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(spec, intent)
	}
	f.Add([]byte("{}"), []byte(`{"format":1,"run":1,"stop":{}}`))
	f.Fuzz(func(t *testing.T, spec, intent []byte) {
		delete(s.saved, id)
		for name, text := range map[string][]byte{"spec.json": spec, "intent": intent} {
			if err := os.WriteFile(filepath.Join(s.TaskDir(id), name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r, err := s.load(id)
		if err != nil {
			return
		}
		if r.ID != id {
			t.Fatalf("the copy is %v", r.ID)
		}
		delete(s.saved, id)
		if err := s.Save(r); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		again, err := s.load(id)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		same := proto.Equal(r.Desired, again.Desired) && proto.Equal(r.Exit, again.Exit)
		a, b := r, again
		a.Desired, b.Desired, a.Exit, b.Exit = nil, nil, nil, nil
		if !same || !reflect.DeepEqual(a, b) {
			t.Errorf("read again it is\n%+v, and was\n%+v", again, r)
		}
		goOn(t, r)
	})
}

// goOn has a core take over a record, and told to stop and to forget it.
func goOn(t *testing.T, r Record) {
	for _, kind := range []ObservedKind{Absent, Starting, Running, Exited, NotStarted} {
		c := NewCore(CoreConfig{Backoff: DefaultBackoff(), Boot: "b", HoldNs: holdNs})
		now := Now{MonoNs: 1, WallNs: 1}
		c.Step(now, Recovered{Copies: []Found{{Record: r, Observed: Observed{ID: r.ID, Run: r.Run, Kind: kind, Pid: 7}}}})
		now.MonoNs += int64(time.Hour)
		c.Step(now, Tick{})
		c.Step(now, Polled{Stops: []*borgrpc.Stop{{Copy: r.ID.wire()}}})
		c.Step(now, Observed{ID: r.ID, Run: r.Run, Kind: Exited, Exit: &borgpb.Exit{}})
		for _, report := range c.State().Tasks {
			if report.GetJobUid() != r.ID.JobUID || report.GetIndex() != r.ID.Index || report.GetAttempt() != r.ID.Attempt {
				t.Errorf("it reports %v", report)
			}
		}
		c.Step(now, Polled{Forget: []*borgrpc.CopyID{r.ID.wire()}})
	}
}

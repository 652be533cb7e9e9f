package borglet

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func mark(wall, stdout, stderr int64, run uint32) logMark {
	return logMark{wallNs: wall, lengths: [2]int64{stdout, stderr}, run: run}
}

// An index with a torn end is good up to there, and one of a task that cut its
// output never has lengths that go down.
func TestParseTimes(t *testing.T) {
	marks := logTimes{mark(10, 0, 0, 1), mark(20, 5, 1, 1), mark(30, 9, 1, 2)}
	b := marks.encode()
	for n := range len(b) + 1 {
		want := max(n-len(timesMagic), 0) / markBytes
		if got := parseTimes(b[:n]); !slices.Equal(got, marks[:want]) {
			t.Fatalf("of %d bytes: %v, want the first %d marks", n, got, want)
		}
	}
	for at := len(timesMagic); at < len(b); at++ {
		torn := slices.Clone(b)
		torn[at] ^= 0x40
		if got, want := len(parseTimes(torn)), (at-len(timesMagic))/markBytes; got != want {
			t.Fatalf("with byte %d torn: %d marks, want %d", at, got, want)
		}
	}
	cut := logTimes{mark(10, 7, 0, 1), mark(20, 3, 1, 1), mark(30, 9, 1, 1)}
	if got := parseTimes(cut.encode()); got[0].lengths[0] != 3 {
		t.Errorf("of a stream that was cut: %v", got)
	}
}

func TestLogTimes(t *testing.T) {
	marks := logTimes{mark(10, 0, 0, 1), mark(20, 5, 0, 1), mark(40, 9, 2, 1), mark(60, 9, 2, 2), mark(70, 12, 2, 2)}
	for _, c := range []struct{ since, tail, want int64 }{
		{5, 75, 0}, {10, 75, 0}, {11, 75, 0}, {20, 75, 0}, {21, 75, 5}, {40, 75, 5}, {41, 75, 9}, {70, 75, 9}, {71, 75, 12}, {76, 75, 15},
	} {
		if got := marks.since(0, c.since, c.tail, 15); got != c.want {
			t.Errorf("since(%d) = %d, want %d", c.since, got, c.want)
		}
	}
	for _, c := range []struct {
		offset, wall, end int64
		ok                bool
	}{{0, 20, 5, true}, {4, 20, 5, true}, {5, 40, 9, true}, {9, 70, 12, true}, {12, 0, 0, false}} {
		if wall, end, ok := marks.next(0, c.offset); wall != c.wall || end != c.end || ok != c.ok {
			t.Errorf("next(%d) = %d, %d, %v, want %d, %d, %v", c.offset, wall, end, ok, c.wall, c.end, c.ok)
		}
	}
	for _, c := range []struct {
		nth        uint32
		start, end int64
		ok         bool
	}{{1, 9, -1, true}, {2, 0, 9, true}, {3, 0, 0, false}} {
		if start, end, known, ok := marks.run(0, c.nth); start != c.start || end != c.end || ok != c.ok || c.nth == 3 && known != 2 {
			t.Errorf("run(%d) = %d, %d, %d, %v, want %d, %d, %v", c.nth, start, end, known, ok, c.start, c.end, c.ok)
		}
	}
}

// The index stays within its bound however long a task writes: the newest times are
// exact, and where runs begin stays known.
func TestLogTimesAreBounded(t *testing.T) {
	dir := t.TempDir()
	c := &copyClock{loaded: true}
	f, err := openTimes(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { f.Close() }()
	const n = 5 * maxMarks
	for i := range int64(n) {
		if err := c.add(f, mark(i, i, 0, uint32(1+i/(n/3)))); err != nil {
			t.Fatal(err)
		}
		if c.marks <= maxMarks {
			continue
		}
		if err := c.compact(dir, f, n); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if f, err = openTimes(dir, false); err != nil {
			t.Fatal(err)
		}
	}
	marks, err := readTimes(f)
	if err != nil || len(marks) > maxMarks || int64(len(marks)) != c.marks {
		t.Fatalf("%d marks, %d are counted, %v; want at most %d", len(marks), c.marks, err, maxMarks)
	}
	for i, m := range marks[len(marks)-maxMarks/3:] {
		if want := int64(n - maxMarks/3 + i); m.wallNs != want {
			t.Fatalf("one of the newest marks is of %d, want %d", m.wallNs, want)
		}
	}
	if _, _, known, ok := marks.run(0, 3); !ok {
		t.Errorf("%d runs are known, want 3", known)
	}
	// What is no longer kept has no marks.
	if err := c.compact(dir, f, 100); err != nil {
		t.Fatal(err)
	}
	if c.marks > 202 {
		t.Errorf("%d marks of the 200 bytes that may be kept", c.marks)
	}
}

// logCopy is a copy of an agent that does not run: its looks are the test's.
type logCopy struct {
	t     *testing.T
	dir   string
	id    ID
	agent *Agent
	// As in Config.
	keepBytes int64
}

func newLogCopy(t *testing.T) *logCopy {
	c := &logCopy{t: t, dir: t.TempDir(), id: ID{"1-5-0", 0, 1}}
	c.restart()
	if err := c.agent.store.Save(Record{ID: c.id}); err != nil {
		t.Fatal(err)
	}
	return c
}

// restart is as if the borglet was killed and started.
func (c *logCopy) restart() {
	c.t.Helper()
	agent, err := New(Config{
		Name: "m1", Dir: c.dir, Runtime: NewFake(), Log: slog.New(slog.DiscardHandler),
		Spec: &borgpb.MachineSpec{Addr: "m1:7101"}, Backoff: Backoff{FirstNs: 1, BaseNs: 1, MaxNs: 1, HealthyNs: 1},
		LogKeepBytes: c.keepBytes, Punch: punchHole,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.agent = agent
}

// write adds to a stream, as of a time.
func (c *logCopy) write(name, text string, at time.Time) {
	c.t.Helper()
	path := filepath.Join(c.agent.store.TaskDir(c.id), name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
		f.Close()
	}
	if err == nil {
		err = os.Chtimes(path, at, at)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *logCopy) look(begun bool) {
	c.t.Helper()
	ids := map[ID]bool{}
	if begun {
		ids[c.id] = true
	}
	c.agent.clock.look(c.agent.store, ids, func(err error) { c.t.Error(err) })
}

func (c *logCopy) begin(run uint32) {
	c.t.Helper()
	if err := c.agent.clock.begin(c.agent.store, c.id, run); err != nil {
		c.t.Fatal(err)
	}
}

// read returns what is sent, each piece with its time in seconds.
func (c *logCopy) read(req *borgrpc.ReadLogRequest) (string, error) {
	req.Stream = borgrpc.LogStream_LOG_STREAM_STDOUT
	var b strings.Builder
	err := c.agent.readLog(c.t.Context(), c.id, req, func(r *borgrpc.ReadLogResponse) error {
		if r.GetLostBytes() > 0 {
			fmt.Fprintf(&b, "(%d lost)", r.GetLostBytes())
		}
		if req.GetTimes() {
			fmt.Fprintf(&b, "[%d]", r.GetWallNs()/int64(time.Second))
		}
		b.Write(r.GetData())
		return nil
	})
	return b.String(), err
}

// What a copy wrote is found by time and by run, after the borglet was started
// anew and after the copy was forgotten.
func TestLogByTimeAndRun(t *testing.T) {
	c := newLogCopy(t)
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	now := time.Now().Unix()
	c.begin(1)
	c.write(stdoutFile, "one\nbro", at(now))
	c.look(true)
	c.write(stdoutFile, "ken\n", time.Now())
	c.look(true)
	c.restart()
	c.look(true)
	c.begin(2)
	c.begin(2)
	c.write(stdoutFile, "two\n", time.Now())
	c.look(true)
	c.restart()
	check := func() {
		t.Helper()
		for _, want := range []struct {
			run  uint32
			text string
			err  string
		}{{0, "one\nbroken\ntwo\n", ""}, {1, "two\n", ""}, {2, "one\nbroken\n", ""}, {3, "", "2 runs are known"}} {
			got, err := c.read(&borgrpc.ReadLogRequest{Run: want.run})
			if got != want.text || (err == nil) != (want.err == "") || err != nil && !strings.Contains(err.Error(), want.err) {
				t.Errorf("run %d: %q, %v, want %q, %s", want.run, got, err, want.text, want.err)
			}
		}
		// Nothing was written in the future, and all since the epoch.
		for since, want := range map[time.Time]string{at(1): "one\nbroken\ntwo\n", at(now + 5000): ""} {
			if got, err := c.read(&borgrpc.ReadLogRequest{SinceWallNs: since.UnixNano()}); err != nil || got != want {
				t.Errorf("since %v: %q, %v, want %q", since, got, err, want)
			}
		}
		if got, err := c.read(&borgrpc.ReadLogRequest{FromOffset: 11}); err != nil || got != "two\n" {
			t.Errorf("from offset 11: %q, %v", got, err)
		}
	}
	check()
	c.look(false)
	if err := c.agent.store.Remove(c.id); err != nil {
		t.Fatal(err)
	}
	c.look(false)
	check()
}

// Lines are told with the times at which they were seen; a line that a look came
// into the midst of is told whole.
func TestLogTimesOfPieces(t *testing.T) {
	c := newLogCopy(t)
	c.write(stdoutFile, "one\nbroken\ntwo\nlast\n", time.Unix(50, 0))
	marks := logTimes{mark(10e9, 0, 0, 1), mark(20e9, 7, 0, 1), mark(30e9, 15, 0, 1)}
	if err := os.WriteFile(filepath.Join(c.agent.store.TaskDir(c.id), timesFile), marks.encode(), 0o600); err != nil {
		t.Fatal(err)
	}
	for since, want := range map[int64]string{
		0:    "[20]one\nbro[30]ken\ntwo\n[50]last\n",
		20e9: "[20]one\nbro[30]ken\ntwo\n[50]last\n",
		21e9: "[20]bro[30]ken\ntwo\n[50]last\n",
		31e9: "[50]last\n",
		51e9: "",
	} {
		if got, err := c.read(&borgrpc.ReadLogRequest{SinceWallNs: since, Times: true}); err != nil || got != want {
			t.Errorf("since %d: %q, %v, want %q", since, got, err, want)
		}
	}
}

// How much of a log is lost is told, and none of the hole is read as zeros.
func TestLostPartIsTold(t *testing.T) {
	c := newLogCopy(t)
	const lost = 1 << 20
	path := filepath.Join(c.agent.store.TaskDir(c.id), stdoutFile)
	c.write(stdoutFile, strings.Repeat("x", lost), time.Now())
	c.write(stdoutFile, "the end\n", time.Now())
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, lost); err != nil {
		t.Fatal(err)
	}
	c.write(stdoutFile, "the end\n", time.Now())
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Sys().(*syscall.Stat_t).Blocks*512 > lost/2 {
		t.Skip("the file system of the test knows no holes")
	}
	if got, err := c.read(&borgrpc.ReadLogRequest{}); err != nil || got != fmt.Sprintf("(%d lost)the end\n", lost) {
		t.Errorf("read %.80q, %v", got, err)
	}
	if got, err := c.read(&borgrpc.ReadLogRequest{SinceWallNs: 1}); err != nil || got != "the end\n" {
		t.Errorf("since long ago: %.80q, %v", got, err)
	}
}

// BenchmarkLook is one look at 1,000 copies, as is done each second: of which none has
// written, or all have.
func BenchmarkLook(b *testing.B) {
	const n = 1000
	for _, writes := range []bool{false, true} {
		b.Run(fmt.Sprintf("writes=%v", writes), func(b *testing.B) {
			s, err := OpenStore(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			clock, begun := newLogClock(0), map[ID]bool{}
			var streams []*os.File
			for i := range uint32(n) {
				id := ID{"1-5-0", i, 1}
				begun[id] = true
				if err := os.MkdirAll(s.TaskDir(id), 0o700); err != nil {
					b.Fatal(err)
				}
				f, err := os.Create(filepath.Join(s.TaskDir(id), stdoutFile))
				if err == nil {
					err = clock.begin(s, id, 1)
				}
				if err != nil {
					b.Fatal(err)
				}
				streams = append(streams, f)
			}
			defer func() {
				for _, f := range streams {
					f.Close()
				}
			}()
			for b.Loop() {
				if writes {
					b.StopTimer()
					for _, f := range streams {
						if _, err := f.WriteString("a line\n"); err != nil {
							b.Fatal(err)
						}
					}
					b.StartTimer()
				}
				clock.look(s, begun, func(err error) { b.Error(err) })
			}
		})
	}
}

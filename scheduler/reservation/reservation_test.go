package reservation

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// everySetting from the one that keeps most to the one that keeps least.
var everySetting = []Setting{Conservative, Medium, Aggressive}

// TestTranscripts plays the scenarios in testdata. Under `task` one task is
// looked at every few seconds, with each setting:
//
//	task every=SECONDS show=SECONDS end=SECONDS [fixed]
//	SECONDS limit=N used=N        from then on
//
// Under `machine` the same for tasks on one machine, by predictor:
//
//	machine every=SECONDS show=SECONDS end=SECONDS
//	SECONDS TASK limit=N used=N [fixed]
//	SECONDS TASK gone
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "task":
				return playTask(t, d)
			case "machine":
				return playMachine(t, d)
			}
			t.Fatalf("%s: the commands are task and machine", d.Pos)
			return ""
		})
	})
}

// step is what changes at a moment of a scenario.
type step struct {
	atS   int64
	task  string
	limit int64
	used  int64
	fixed bool
	gone  bool
}

// scenario is the head of a command and its steps.
type scenario struct {
	everyS, showS, endS int64
	fixed               bool
	steps               []step
}

func readScenario(t *testing.T, d *datadriven.TestData) scenario {
	s := scenario{fixed: d.HasArg("fixed")}
	d.ScanArgs(t, "every", &s.everyS)
	d.ScanArgs(t, "show", &s.showS)
	d.ScanArgs(t, "end", &s.endS)
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		var st step
		if _, err := fmt.Sscan(words[0], &st.atS); err != nil {
			t.Fatalf("%s: %q begins with no time", d.Pos, line)
		}
		for _, w := range words[1:] {
			k, v, _ := strings.Cut(w, "=")
			var err error
			switch k {
			case "limit":
				_, err = fmt.Sscan(v, &st.limit)
			case "used":
				_, err = fmt.Sscan(v, &st.used)
			case "fixed":
				st.fixed = true
			case "gone":
				st.gone = true
			default:
				st.task = k
			}
			if err != nil {
				t.Fatalf("%s: %q: %v", d.Pos, w, err)
			}
		}
		s.steps = append(s.steps, st)
	}
	return s
}

func playTask(t *testing.T, d *datadriven.TestData) string {
	s := readScenario(t, d)
	var out strings.Builder
	fmt.Fprintf(&out, "%6s %8s %8s", "s", "limit", "used")
	for _, set := range everySetting {
		fmt.Fprintf(&out, " %12s", set)
	}
	out.WriteByte('\n')
	tasks := make([]Task, len(everySetting))
	var now step
	for atS := int64(0); atS <= s.endS; atS += s.everyS {
		for len(s.steps) > 0 && s.steps[0].atS <= atS {
			now, s.steps = s.steps[0], s.steps[1:]
		}
		limit, used := Amounts{now.limit, now.limit << 20}, Amounts{now.used, now.used << 20}
		if atS%s.showS == 0 {
			fmt.Fprintf(&out, "%6d %8d %8d", atS, now.limit, now.used)
		}
		for i, set := range everySetting {
			if atS == 0 {
				tasks[i] = Begin(0, limit)
			}
			tasks[i].Use(atS*1e9, limit, used, s.fixed, set.Config())
			if atS%s.showS == 0 {
				fmt.Fprintf(&out, " %12d", tasks[i].Reserved().CPUMilli)
			}
		}
		if atS%s.showS == 0 {
			out.WriteByte('\n')
		}
	}
	return out.String()
}

func playMachine(t *testing.T, d *datadriven.TestData) string {
	s := readScenario(t, d)
	predictors := []struct {
		name string
		Predictor
	}{
		{"limits", &Share{Permille: 1000}},
		{"share", &Share{Permille: 900}},
		{"reservations", &Reservations{Config: Medium.Config()}},
		{"n-sigma", &NSigma{N: 5}},
		{"percentiles", &Percentiles{Percent: 95}},
		{"peak", NewPeak()},
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%6s %6s", "s", "used")
	for _, p := range predictors {
		fmt.Fprintf(&out, " %12s", p.name)
	}
	out.WriteByte('\n')
	var names []string
	tasks := make(map[string]step)
	for atS := int64(0); atS <= s.endS; atS += s.everyS {
		for len(s.steps) > 0 && s.steps[0].atS <= atS {
			st := s.steps[0]
			s.steps = s.steps[1:]
			if _, known := tasks[st.task]; !known {
				names = append(names, st.task)
			}
			tasks[st.task] = st
		}
		var windows []Window
		used := int64(0)
		for i, name := range names {
			if st := tasks[name]; !st.gone {
				windows = append(windows, Window{Task: uint64(i), Limit: st.limit, Used: st.used, Fixed: st.fixed})
				used += st.used
			}
		}
		if atS%s.showS == 0 {
			fmt.Fprintf(&out, "%6d %6d", atS, used)
		}
		for _, p := range predictors {
			p.Observe(atS*1e9, windows)
			if atS%s.showS == 0 {
				fmt.Fprintf(&out, " %12d", p.Peak())
			}
		}
		if atS%s.showS == 0 {
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// amount draws so that small numbers and bytes of large machines both come.
func amount(t *rapid.T, name string, most int64) int64 {
	return rapid.Int64Range(0, most).Draw(t, name) >> rapid.IntRange(0, 50).Draw(t, name+" shift")
}

// TestTaskProperties wants of any course of usage: never above the limit unless
// use is, never below use, the limit while it is held, settings in order, and
// a fixed task at its limit.
func TestTaskProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := amount(t, "limit", 1<<50)
		fixed := rapid.IntRange(0, 9).Draw(t, "fixed") == 0
		start := rapid.Int64Range(0, 1<<60).Draw(t, "start")
		tasks := make([]Task, len(everySetting))
		for i := range tasks {
			tasks[i] = Begin(start, Amounts{MemBytes: limit})
		}
		nowNs := start
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			nowNs += rapid.Int64Range(0, 100e9).Draw(t, "elapsed")
			used := amount(t, "used", 2*limit)
			if rapid.IntRange(0, 9).Draw(t, "new limit") == 0 {
				limit = amount(t, "limit", 1<<50)
			}
			for i, set := range everySetting {
				tasks[i].Use(nowNs, Amounts{MemBytes: limit}, Amounts{MemBytes: used}, fixed, set.Config())
				got := tasks[i].Reserved().MemBytes
				switch {
				case fixed && got != limit:
					t.Fatalf("%v: a fixed task has %d of its limit of %d", set, got, limit)
				case fixed:
				case got < used:
					t.Fatalf("%v: %d is reserved and %d used", set, got, used)
				case got > max(limit, used):
					t.Fatalf("%v: %d is reserved, the limit is %d and %d is used", set, got, limit, used)
				case nowNs-start < 300e9 && got != max(limit, used):
					t.Fatalf("%v: %d is reserved of %d %d ns after the start", set, got, limit, nowNs-start)
				}
				if i > 0 && got > tasks[i-1].Reserved().MemBytes {
					t.Fatalf("%v has %d, %v only %d", set, got, everySetting[i-1], tasks[i-1].Reserved().MemBytes)
				}
			}
		}
	})
}

// TestFalls wants the reservation of a steady task to fall without a rise until
// it is what is used plus the margin, however often it is looked at.
func TestFalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := amount(t, "limit", 1<<50)
		used := amount(t, "used", limit)
		everyNs := rapid.Int64Range(1e9, 60e9).Draw(t, "every")
		cfg := everySetting[rapid.IntRange(0, 2).Draw(t, "setting")].Config()
		task, last := Begin(0, Amounts{CPUMilli: limit}), limit
		for nowNs := int64(0); nowNs < 60*cfg.HalfLifeNs; nowNs += everyNs {
			task.Use(nowNs, Amounts{CPUMilli: limit}, Amounts{CPUMilli: used}, false, cfg)
			now := task.Reserved().CPUMilli
			if now > last {
				t.Fatalf("it rose from %d to %d", last, now)
			}
			last = now
		}
		if want := min(used+mulDiv(used, cfg.MarginPermille, 1000), limit); last != want {
			t.Errorf("it ended at %d, want %d", last, want)
		}
	})
}

// TestHalfLife wants half of what is too much left after a half-life, whatever
// the steps, to a hundredth.
func TestHalfLife(t *testing.T) {
	const gap = 1 << 40
	for _, everyNs := range []int64{1e9, 2e9, 7e9, 60e9, 600e9} {
		now := int64(gap)
		for range 600e9 / everyNs {
			now = left(now, everyNs, 600e9)
		}
		now = left(now, 600e9%everyNs, 600e9)
		if off := now - gap/2; max(off, -off) > gap/2/100 {
			t.Errorf("every %d s: %d are left of %d", everyNs/1e9, now, int64(gap))
		}
	}
	if got := left(gap, 40*600e9, 600e9); got != 1 {
		t.Errorf("after 40 half-lives %d is left of 2^40, want 1", got)
	}
	if got := left(1<<50, 1<<62, 1); got != 0 {
		t.Errorf("after ages %d is left", got)
	}
}

// TestResume wants a new elected master to go on where the log says that the old
// one was, not to hold the limit again.
func TestResume(t *testing.T) {
	cfg := Medium.Config()
	limit, used := Amounts{4000, 8 << 30}, Amounts{1000, 2 << 30}
	old := Begin(0, limit)
	for s := int64(5); s <= 900; s += 5 {
		old.Use(s*1e9, limit, used, false, cfg)
	}
	next := Resume(900e9, old.Reserved(), cfg)
	for s := int64(905); s <= 2000; s += 5 {
		old.Use(s*1e9, limit, used, false, cfg)
		next.Use(s*1e9, limit, used, false, cfg)
		if old.Reserved() != next.Reserved() {
			t.Fatalf("after %d s: %+v, and resumed %+v", s, old.Reserved(), next.Reserved())
		}
	}
}

func TestDiffers(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		logged, now    Amounts
		rises, exceeds bool
		want           bool
	}{
		{logged: Amounts{MemBytes: 1000 * mib}, now: Amounts{MemBytes: 1000 * mib}},
		{logged: Amounts{MemBytes: 1000 * mib}, now: Amounts{MemBytes: 950 * mib}},
		{logged: Amounts{MemBytes: 1000 * mib}, now: Amounts{MemBytes: 949 * mib}, want: true},
		{logged: Amounts{MemBytes: 1000 * mib}, now: Amounts{MemBytes: 1050 * mib}, exceeds: true},
		{logged: Amounts{MemBytes: 1000 * mib}, now: Amounts{MemBytes: 1051 * mib}, rises: true, exceeds: true, want: true},
		{logged: Amounts{MemBytes: 8 * mib}, now: Amounts{MemBytes: 4 * mib}},
		{logged: Amounts{MemBytes: 8 * mib}, now: Amounts{MemBytes: 3 * mib}, want: true},
		{logged: Amounts{CPUMilli: 100}, now: Amounts{CPUMilli: 90}},
		{logged: Amounts{CPUMilli: 100}, now: Amounts{CPUMilli: 89}, want: true},
		{logged: Amounts{}, now: Amounts{CPUMilli: 11}, rises: true, exceeds: true, want: true},
		{logged: Amounts{CPUMilli: 1000, MemBytes: 1000 * mib}, now: Amounts{CPUMilli: 500, MemBytes: 1001 * mib}, exceeds: true, want: true},
	} {
		if got := c.now.Differs(c.logged); got != c.want {
			t.Errorf("%+v logged, now %+v: differs is %v, want %v", c.logged, c.now, got, c.want)
		}
		if got := c.now.Rises(c.logged); got != c.rises {
			t.Errorf("%+v logged, now %+v: rises is %v, want %v", c.logged, c.now, got, c.rises)
		}
		if got := c.now.Exceeds(c.logged); got != c.exceeds {
			t.Errorf("%+v logged, now %+v: exceeds is %v, want %v", c.logged, c.now, got, c.exceeds)
		}
	}
}

// TestBeginLate wants of a copy that is heard of late no more than the rest of its
// hold, and no time of decay that nobody looked at.
func TestBeginLate(t *testing.T) {
	cfg := Medium.Config()
	limit, used := Amounts{4000, 8 << 30}, Amounts{1000, 2 << 30}
	late := BeginLate(1000e9, 200e9, limit, cfg)
	late.Use(1099e9, limit, used, false, cfg)
	if got := late.Reserved(); got != limit {
		t.Errorf("299 s after it was placed it reserves %+v, want its limit", got)
	}
	old := BeginLate(1000e9, 5000e9, limit, cfg)
	old.Use(1000e9, limit, used, false, cfg)
	if got := old.Reserved(); got != limit {
		t.Errorf("heard of first it reserves %+v, want its limit", got)
	}
	old.Skip(9000e9)
	old.Use(9000e9, limit, used, false, cfg)
	if got := old.Reserved(); got != limit {
		t.Errorf("not heard of for 8000 s it reserves %+v, want what it did", got)
	}
}

// TestPredictorProperties wants of any machine: nothing above the limits unless
// use is, fixed and new tasks at their limits, and the larger of two that is the
// larger of the two.
func TestPredictorProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sigma, percentiles := &NSigma{N: 5}, &Percentiles{Percent: 95}
		both := NewPeak()
		predictors := []Predictor{&Share{Permille: 900}, &Reservations{Config: Medium.Config()}, sigma, percentiles, both}
		type task struct {
			limit int64
			fixed bool
			seen  int
		}
		tasks := make(map[uint64]*task)
		for w := range rapid.IntRange(1, 200).Draw(t, "windows") {
			if len(tasks) < 8 && rapid.IntRange(0, 9).Draw(t, "comes") == 0 || len(tasks) == 0 {
				tasks[uint64(w)] = &task{amount(t, "limit", 1<<50), rapid.IntRange(0, 5).Draw(t, "fixed") == 0, 0}
			}
			var windows []Window
			var atMost, atLeast int64
			for id := range uint64(w + 1) {
				k := tasks[id]
				if k == nil {
					continue
				}
				if rapid.IntRange(0, 99).Draw(t, "leaves") == 0 {
					delete(tasks, id)
					continue
				}
				k.seen++
				used := amount(t, "used", k.limit+k.limit/8)
				windows = append(windows, Window{Task: id, Limit: k.limit, Used: used, Fixed: k.fixed})
				atMost += max(k.limit, used)
				if k.fixed || k.seen < warmWindows {
					atLeast += k.limit
				}
			}
			for i, p := range predictors {
				p.Observe(int64(w)*300e9, windows)
				if got := p.Peak(); got < 0 || got > atMost {
					t.Fatalf("predictor %d says %d, use and limits are %d at most", i, got, atMost)
				}
			}
			for _, p := range []Predictor{sigma, percentiles, both} {
				if got := p.Peak(); got < atLeast {
					t.Fatalf("%T says %d, the limits of new and fixed tasks alone are %d", p, got, atLeast)
				}
			}
			if got, want := both.Peak(), max(sigma.Peak(), percentiles.Peak()); got != want {
				t.Fatalf("the larger of the two is %d, want %d", got, want)
			}
		}
	})
}

// TestPredictorsForget wants nothing kept of tasks that have left, and little of
// those that are there.
func TestPredictorsForget(t *testing.T) {
	reservations, sigma, percentiles := &Reservations{Config: Medium.Config()}, &NSigma{N: 5}, &Percentiles{Percent: 95}
	for w := range uint64(1000) {
		windows := []Window{{Task: w, Limit: 10, Used: 5}, {Task: w + 1, Limit: 10, Used: 5}}
		for _, p := range []Predictor{reservations, sigma, percentiles} {
			p.Observe(int64(w)*300e9, windows)
		}
	}
	if a, b, c := len(reservations.tasks.byTask), len(sigma.tasks.byTask), len(percentiles.tasks.byTask); a != 2 || b != 2 || c != 2 {
		t.Errorf("%d, %d and %d tasks are remembered, want the 2 that are there", a, b, c)
	}
	for name, c := range map[string]struct{ got, most uintptr }{
		"Task":        {unsafe.Sizeof(Task{}), 32},
		"NSigma":      {unsafe.Sizeof(entry[uint8]{}), 8},
		"Percentiles": {unsafe.Sizeof(entry[shares]{}), 72},
	} {
		if c.got > c.most {
			t.Errorf("%s keeps %d bytes of a task, want at most %d", name, c.got, c.most)
		}
	}
}

func TestParseSetting(t *testing.T) {
	for _, want := range everySetting {
		if got, err := ParseSetting(want.String()); err != nil || got != want {
			t.Errorf("ParseSetting(%q) = %v, %v", want, got, err)
		}
		if err := want.Config().Validate(); err != nil {
			t.Errorf("%v: %v", want, err)
		}
	}
	if got, err := ParseSetting(""); err != nil || got != Medium {
		t.Errorf("the default is %v, %v", got, err)
	}
	if _, err := ParseSetting("bold"); err == nil {
		t.Error("bold is a setting")
	}
}

func TestIsqrt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Uint64Range(0, 1<<62).Draw(t, "v") >> rapid.IntRange(0, 62).Draw(t, "shift")
		r := uint64(isqrt(v))
		if r*r > v || (r+1)*(r+1) <= v {
			t.Errorf("isqrt(%d) = %d", v, r)
		}
	})
}

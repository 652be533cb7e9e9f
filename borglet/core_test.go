package borglet

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestCore runs the transcripts in testdata/core. Commands:
//
//	new [boot=B] [hold=D]         a core that knows of nothing
//	recover                       lines: ID [field=value ...] [found=KIND ...]
//	poll                          lines: desired ID ..., stop ID ..., forget ID
//	observe ID run=N KIND ...     what the runtime saw
//	fail ID run=N op=OP text=T    an effect that could not be done
//	updated ID run=N              limits that were changed
//	disk slow|fast                whether an end is kept only when saved says so
//	saved ID                      the record of an ended copy is on the disk
//	checked ID run=N [failure=T] [undecided]
//	                              what came of a health check
//	squeeze room=N [capacity=N]   the machine is short of memory; lines: ID used=N
//	fill [room=N capacity=N]      what copies keep on disk; lines: ID used=N, ID why=T, alloc=A used=N
//	wait D                        time passes; timers fire as they are due
//	state                         what would be reported
//
// Each prints the effects. IDs are written uid.index.attempt.
func TestCore(t *testing.T) {
	datadriven.Walk(t, "testdata/core", func(t *testing.T, path string) {
		w := &coreWorld{t: t}
		datadriven.RunTest(t, path, w.run)
	})
}

type coreWorld struct {
	t    *testing.T
	core *Core
	now  time.Duration
	slow bool
}

// epoch is the wall time at which transcripts begin.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (w *coreWorld) moment() Now {
	return Now{MonoNs: int64(w.now) + 1, WallNs: epoch.Add(w.now).UnixNano()}
}

func (w *coreWorld) run(t *testing.T, d *datadriven.TestData) string {
	w.t = t
	words := map[string]string{}
	var bare []string
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 {
			bare = append(bare, a.Key)
			continue
		}
		words[a.Key] = strings.Join(a.Vals, ",")
	}
	switch d.Cmd {
	case "new":
		cfg := CoreConfig{Backoff: DefaultBackoff(), Boot: "boot1", HoldNs: int64(w.duration(words["hold"]))}
		if words["boot"] != "" {
			cfg.Boot = words["boot"]
		}
		w.core = NewCore(cfg)
		return ""
	case "recover":
		return w.step(w.recovered(d.Input))
	case "poll":
		return w.step(w.polled(d.Input))
	case "observe":
		return w.step(w.observed(bare[0], words, bare[1:]))
	case "fail":
		op := map[string]Op{"start": OpStart, "terminate": OpTerminate, "kill": OpKill, "update": OpUpdate, "destroy": OpDestroy, "remove": OpRemove, "save": OpSave, "warn": OpWarn}[words["op"]]
		return w.step(Failed{ID: w.id(bare[0]), Run: uint32(w.number(words["run"])), Op: op, Text: words["text"]})
	case "updated":
		return w.step(Updated{ID: w.id(bare[0]), Run: uint32(w.number(words["run"]))})
	case "checked":
		return w.step(Checked{ID: w.id(bare[0]), Run: uint32(w.number(words["run"])), Failure: words["failure"], Undecided: len(bare) > 1})
	case "disk":
		w.slow = bare[0] == "slow"
		return ""
	case "saved":
		return w.step(Saved{w.id(bare[0])})
	case "squeeze":
		ev := Squeezed{RoomBytes: w.number(words["room"]), CapacityBytes: w.number(words["room"]), UsedBytes: map[ID]int64{}}
		if words["capacity"] != "" {
			ev.CapacityBytes = w.number(words["capacity"])
		}
		for line := range strings.Lines(d.Input) {
			m, bare := fields(strings.Fields(line))
			ev.UsedBytes[w.id(bare[0])] = w.number(m["used"])
		}
		return w.step(ev)
	case "fill":
		return w.step(w.filled(words, d.Input))
	case "hoarded":
		return w.step(Hoarded{ID: w.id(bare[0]), Why: words["why"]})
	case "wait":
		return w.wait(w.duration(bare[0]))
	case "state":
		return w.state()
	}
	t.Fatalf("unknown command %q", d.Cmd)
	return ""
}

func (w *coreWorld) filled(words map[string]string, input string) Filled {
	ev := Filled{
		UsedBytes: map[ID]int64{}, AllocBytes: map[string]int64{}, VolumeBytes: map[VolumeID]int64{},
		Unmeasured: map[ID]string{}, UnmeasuredAlloc: map[string]string{}, UnmeasuredVolume: map[VolumeID]string{},
	}
	ev.RoomBytes, ev.CapacityBytes = w.number(words["room"]), w.number(words["capacity"])
	for line := range strings.Lines(input) {
		m, bare := fields(strings.Fields(line))
		switch {
		case m["alloc"] != "" && m["why"] != "":
			ev.UnmeasuredAlloc[AllocName(m["alloc"])] = m["why"]
		case m["volume"] != "":
			id, ok := parseVolumeID(m["volume"])
			if !ok {
				w.t.Fatalf("%s is no volume", m["volume"])
			}
			if ev.VolumeBytes[id] = w.number(m["used"]); m["why"] != "" {
				ev.UnmeasuredVolume[id] = m["why"]
			}
		case m["alloc"] != "":
			ev.AllocBytes[AllocName(m["alloc"])] = w.number(m["used"])
		case m["why"] != "":
			ev.Unmeasured[w.id(bare[0])] = m["why"]
		default:
			ev.UsedBytes[w.id(bare[0])] = w.number(m["used"])
		}
	}
	return ev
}

// wait lets time pass from timer to timer, as the agent's loop does.
func (w *coreWorld) wait(d time.Duration) string {
	var out strings.Builder
	end := w.now + d
	for {
		due, ok := w.core.NextNs()
		if !ok || time.Duration(due-1) > end {
			break
		}
		w.now = max(w.now, time.Duration(due-1))
		if s := w.step(Tick{}); s != "" {
			fmt.Fprintf(&out, "at %s:\n%s", w.now, s)
		}
	}
	w.now = end
	return out.String()
}

func (w *coreWorld) step(ev Event) string {
	var out strings.Builder
	for _, e := range w.core.Step(w.moment(), ev) {
		switch e := e.(type) {
		case Save:
			fmt.Fprintf(&out, "save %s\n", recordText(e.Record))
			if e.Record.Ended != 0 && !w.slow {
				defer w.core.Step(w.moment(), Saved{e.Record.ID})
			}
		case Start:
			fmt.Fprintf(&out, "start %s\n", recordText(e.Record))
		case Check:
			fmt.Fprintf(&out, "check %s run=%d", e.Record.ID, e.Record.Run)
			if e.Addr != "" {
				fmt.Fprintf(&out, " at %s", e.Addr)
			}
			out.WriteString("\n")
		case Terminate:
			fmt.Fprintf(&out, "terminate %s run=%d cause=%s", e.ID, e.Run, e.Notice.Cause)
			if e.Notice.Reason != "" {
				fmt.Fprintf(&out, " reason=%q", e.Notice.Reason)
			}
			fmt.Fprintf(&out, " in=%v\n", e.Notice.Deadline.Sub(e.Notice.At))
		case Warn:
			fmt.Fprintf(&out, "warn %s run=%d cause=%s signal=%t sigterm in=%v, sigkill in=%v\n", e.ID, e.Run, e.Notice.Cause, e.Signal,
				e.Notice.Sigterm.Sub(e.Notice.At), e.Notice.Deadline.Sub(e.Notice.At))
		case Kill:
			fmt.Fprintf(&out, "kill %s run=%d\n", e.ID, e.Run)
		case Update:
			fmt.Fprintf(&out, "update %s\n", recordText(e.Record))
		case Tell:
			fmt.Fprintf(&out, "tell %s\n", recordText(e.Record))
		case Destroy:
			fmt.Fprintf(&out, "destroy %s\n", e.ID)
		case Clear:
			fmt.Fprintf(&out, "clear %s run=%d\n", e.ID, e.Run)
		case Remove:
			fmt.Fprintf(&out, "remove %s\n", e.ID)
		}
	}
	return out.String()
}

func recordText(r Record) string {
	s := fmt.Sprintf("%s run=%d version=%d", r.ID, r.Run, r.Desired.GetVersion())
	if r.RunEnded {
		s += " run-ended"
	}
	if r.Restarts > 0 {
		s += fmt.Sprintf(" restarts=%d", r.Restarts)
	}
	if r.Failures > 0 {
		s += fmt.Sprintf(" failures=%d", r.Failures)
	}
	if r.Passed {
		s += " passed"
	}
	if r.Clear {
		s += " clear"
	}
	if r.Stop != nil {
		s += fmt.Sprintf(" stop=%s", time.Duration(r.Stop.GraceNs))
		if r.Stop.NoticeNs > 0 {
			s += fmt.Sprintf(" notice=%s", time.Duration(r.Stop.NoticeNs))
		}
	}
	if r.Ended != 0 {
		s += " " + endedName(r.Ended)
	}
	return s
}

func (w *coreWorld) state() string {
	var out strings.Builder
	s := w.core.State()
	for i, r := range s.Tasks {
		fmt.Fprintf(&out, "%s.%d.%d version=%d %s", r.JobUid, r.Index, r.Attempt, s.Versions[i],
			strings.TrimPrefix(borgpb.AttemptState(r.State).String(), "ATTEMPT_STATE_"))
		if r.Pid != 0 {
			fmt.Fprintf(&out, " pid=%d", r.Pid)
		}
		if r.Addr != "" {
			fmt.Fprintf(&out, " at %s", r.Addr)
		}
		if r.Restarts != 0 {
			fmt.Fprintf(&out, " restarts=%d", r.Restarts)
		}
		if r.Failures != 0 {
			fmt.Fprintf(&out, " failures=%d", r.Failures)
		}
		if r.Exit != nil {
			fmt.Fprintf(&out, " exit=%q", ExitText(r.Exit))
		}
		if why := r.GetExit().GetReason(); why != "" {
			fmt.Fprintf(&out, " for=%q", why)
		}
		if r.ShimLost {
			out.WriteString(" shim-lost")
		}
		if r.Text != "" {
			fmt.Fprintf(&out, " text=%q", r.Text)
		}
		out.WriteString("\n")
	}
	fmt.Fprintf(&out, "hash %x\n", s.Hash[:4])
	return out.String()
}

func (w *coreWorld) id(s string) ID {
	w.t.Helper()
	id, err := ParseID(s)
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

func (w *coreWorld) number(s string) int64 {
	w.t.Helper()
	if s == "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *coreWorld) duration(s string) time.Duration {
	w.t.Helper()
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func fields(words []string) (map[string]string, []string) {
	m := map[string]string{}
	var bare []string
	for _, word := range words {
		if k, v, ok := strings.Cut(word, "="); ok {
			m[k] = v
		} else {
			bare = append(bare, word)
		}
	}
	return m, bare
}

func (w *coreWorld) desired(id ID, m map[string]string) *borgrpc.Desired {
	d := &borgrpc.Desired{Copy: id.wire(), User: "alice", Job: "web", Kind: borgpb.JobKind_JOB_KIND_SERVICE, Version: 1}
	if m["kind"] == "batch" {
		d.Kind = borgpb.JobKind_JOB_KIND_BATCH
	}
	if m["version"] != "" {
		d.Version = uint64(w.number(m["version"]))
	}
	if m["spec"] != "no" {
		d.Spec = &borgpb.TaskSpec{Args: []string{"true"}}
		if m["mem"] != "" || m["disk"] != "" {
			d.Spec.Resources = &borgpb.Resources{MemBytes: w.number(m["mem"]), DiskBytes: w.number(m["disk"])}
		}
	}
	if m["notice-signal"] != "" {
		d.Spec.NoticeNs, d.Spec.NoticeSignal = int64(time.Minute), true
	}
	if m["health"] != "" {
		// period/grace/failures
		f := strings.Split(m["health"], "/")
		d.Spec.Health = &borgpb.HealthCheck{HttpPath: "/", PeriodNs: int64(w.duration(f[0])), StartGraceNs: int64(w.duration(f[1])), Failures: uint32(w.number(f[2]))}
		d.Spec.GraceNs = int64(5 * time.Second)
	}
	d.Priority, d.ReservedMemBytes = int32(w.number(m["priority"])), w.number(m["reserved"])
	if m["alloc"] != "" {
		d.Alloc, d.AllocResources = m["alloc"], &borgpb.Resources{DiskBytes: w.number(m["alloc_disk"])}
	}
	if m["volume"] != "" {
		d.User, d.Job = "alice", "db"
		d.Spec.Volumes = []*borgpb.Volume{{Name: "data", Path: "/data", DiskBytes: w.number(m["volume"])}}
	}
	if m["after"] != "" {
		for s := range strings.SplitSeq(m["after"], ",") {
			d.After = append(d.After, w.id(s).wire())
		}
	}
	return d
}

func (w *coreWorld) polled(input string) Polled {
	var p Polled
	for line := range strings.Lines(input) {
		words := strings.Fields(line)
		m, bare := fields(words)
		id := w.id(bare[1])
		switch bare[0] {
		case "desired":
			p.Desired = append(p.Desired, w.desired(id, m))
		case "stop":
			p.Stops = append(p.Stops, &borgrpc.Stop{Copy: id.wire(), Cause: borgpb.StopCause_STOP_CAUSE_KILL, Reason: m["reason"], Index: 1, GraceNs: int64(w.duration(m["grace"])), NoticeNs: int64(w.duration(m["notice"]))})
		case "forget":
			p.Forget = append(p.Forget, id.wire())
		default:
			w.t.Fatalf("unknown line %q", line)
		}
	}
	return p
}

func (w *coreWorld) observed(id string, m map[string]string, bare []string) Observed {
	o := Observed{ID: w.id(id), Run: uint32(w.number(m["run"])), Text: m["text"], Addr: m["addr"]}
	for _, word := range bare {
		switch word {
		case "absent":
			o.Kind = Absent
		case "starting":
			o.Kind = Starting
		case "running":
			o.Kind, o.Pid, o.StartedWallNs = Running, w.number(m["pid"]), epoch.Add(w.now-w.duration(m["since"])).UnixNano()
		case "exited":
			o.Kind = Exited
			o.Exit = &borgpb.Exit{
				Code: int32(w.number(m["code"])), Signal: int32(w.number(m["signal"])), Error: m["error"],
				EndedWallNs: w.moment().WallNs,
			}
		case "not-started":
			o.Kind = NotStarted
		case "shim-lost":
			o.ShimLost = true
		default:
			w.t.Fatalf("unknown observation %q", word)
		}
	}
	return o
}

func (w *coreWorld) recovered(input string) Recovered {
	var r Recovered
	for line := range strings.Lines(input) {
		m, bare := fields(strings.Fields(line))
		id := w.id(bare[0])
		f := Found{Record: Record{
			ID: id, Desired: w.desired(id, m), Boot: "boot1", Run: uint32(w.number(m["run"])), RunVersion: 1,
			Restarts: uint32(w.number(m["restarts"])), Failures: uint32(w.number(m["failures"])),
			RunEnded: m["run-ended"] != "", Passed: m["passed"] != "", Ended: endedState(m["ended"]),
		}}
		if m["boot"] != "" {
			f.Record.Boot = m["boot"]
		}
		if m["stop"] != "" {
			f.Record.Stop = &StopOrder{GraceNs: int64(w.duration(m["stop"])), NoticeNs: int64(w.duration(m["notice"]))}
		}
		if m["spec"] == "no" {
			f.Record.Desired = nil
		}
		f.Observed = w.observed(bare[0], m, bare[1:])
		r.Copies = append(r.Copies, f)
	}
	return r
}

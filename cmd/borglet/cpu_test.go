package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// The period of a hard limit, and what 0.25 cores are of it.
	quotaPeriod  = 100 * time.Millisecond
	quarterQuota = 25 * time.Millisecond
	// How much processor time is divided before it is said who got how much.
	divided = 2 * time.Second
)

// cpuTime is what a cgroup has had of the processor: its time, and the periods in which
// it was held to its limit.
type cpuTime struct {
	used               time.Duration
	periods, throttled int64
}

func (c cpuTime) since(earlier cpuTime) cpuTime {
	return cpuTime{used: c.used - earlier.used, periods: c.periods - earlier.periods, throttled: c.throttled - earlier.throttled}
}

// cpuTimeOf reads it from the kernel's own files.
func (m *machine) cpuTimeOf(id *borgrpc.CopyID) (c cpuTime) {
	m.t.Helper()
	name := filepath.Base(m.file(id, ""))
	path := filepath.Join("/sys/fs/cgroup/cpu/borg", m.name, name, "cpu.stat")
	v1 := exists("/sys/fs/cgroup/cpu")
	if v1 {
		c.used = time.Duration(m.groupNumber(id, "cpuacct", "cpuacct.usage", ""))
	} else {
		path = filepath.Join("/sys/fs/cgroup/borg", m.name, name, "cpu.stat")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		m.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			m.t.Fatalf("%s has the line %q", path, line)
		}
		switch key {
		case "nr_periods":
			c.periods = n
		case "nr_throttled":
			c.throttled = n
		case "usage_usec":
			c.used = time.Duration(n) * time.Microsecond
		}
	}
	return c
}

// quotaOf is the hard limit of a copy as the kernel has it: microseconds of a period,
// -1 without one.
func (m *machine) quotaOf(id *borgrpc.CopyID) int64 {
	m.t.Helper()
	if exists("/sys/fs/cgroup/cpu") {
		return m.groupNumber(id, "cpu", "cpu.cfs_quota_us", "")
	}
	text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/borg", m.name, filepath.Base(m.file(id, "")), "cpu.max"))
	if err != nil {
		m.t.Fatal(err)
	}
	limit, _, _ := strings.Cut(string(text), " ")
	if limit == "max" {
		return -1
	}
	n, err := strconv.ParseInt(limit, 10, 64)
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

// spinner wants a task that never stops computing, and waits until it does. Its
// program runs on the first processor alone if it is to be beside others there.
func (m *machine) spinner(kind borgpb.JobKind, cpuMilli int64, slack borgpb.Slack, beside bool) *borgrpc.CopyID {
	m.t.Helper()
	args := []string{"/bin/sh", "-c", "while :; do :; done"}
	if beside {
		args = append([]string{"/usr/bin/taskset", "-c", firstProcessor(m.t)}, args...)
	}
	id := m.want(kind, &borgpb.TaskSpec{Args: args, CpuSlack: slack, Resources: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: 64 << 20}})
	m.untilState(id, running)
	return id
}

// firstProcessor is the first one on which a test may run.
func firstProcessor(t testing.TB) string {
	t.Helper()
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	for cpu := range 1024 {
		if may.IsSet(cpu) {
			return strconv.Itoa(cpu)
		}
	}
	t.Fatal("there is no processor to run on")
	return ""
}

// sharesOf has copies compete until they have used so much together, and says which
// part each of them got. However busy the machine is besides, that does not change.
func (m *machine) sharesOf(ids ...*borgrpc.CopyID) []float64 {
	m.t.Helper()
	before := make([]cpuTime, len(ids))
	for i, id := range ids {
		before[i] = m.cpuTimeOf(id)
	}
	got := make([]float64, len(ids))
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var sum time.Duration
		for i, id := range ids {
			used := m.cpuTimeOf(id).since(before[i]).used
			got[i], sum = float64(used), sum+used
		}
		if sum >= divided {
			for i := range got {
				got[i] /= float64(sum)
			}
			return got
		}
	}
	m.t.Fatalf("%v used %v ns, want %v together", ids, got, divided)
	return nil
}

// TestCPUSlackOff: a busy loop with a hard limit of 0.25 cores is held to it again and
// again, has had all of it whenever it is, and never more.
func TestCPUSlackOff(t *testing.T) {
	m := newMachine(t, "container")
	id := m.spinner(service, 250, borgpb.Slack_SLACK_OFF, false)
	if got := m.quotaOf(id); got != quarterQuota.Microseconds() {
		t.Errorf("its quota is %d us, want %d", got, quarterQuota.Microseconds())
	}
	// The first period began before the program did.
	m.until(id, "held to its limit", func(*borgpb.TaskReport) bool { return m.cpuTimeOf(id).throttled > 0 })
	first := m.cpuTimeOf(id)
	var got cpuTime
	m.until(id, "held to its limit for twenty periods", func(*borgpb.TaskReport) bool {
		got = m.cpuTimeOf(id).since(first)
		return got.throttled >= 20
	})
	t.Logf("in %d periods it was held %d times and used %v", got.periods, got.throttled, got.used)
	// A period that is just beginning may be paid for already, and a little is lent.
	if most := time.Duration(got.periods+2) * quarterQuota; got.used > most+most/5 {
		t.Errorf("it used %v of %d periods, want at most %v", got.used, got.periods, most)
	}
	if least := time.Duration(got.throttled-2) * quarterQuota / 2; got.used < least {
		t.Errorf("it used %v and was held %d times, want at least %v", got.used, got.throttled, least)
	}
}

// TestCPUSlackOn: with slack nothing ever holds a busy loop, so that it has whatever is
// idle; beside one that was promised four times as much it falls back towards its share.
func TestCPUSlackOn(t *testing.T) {
	m := newMachine(t, "container")
	id := m.spinner(service, 250, borgpb.Slack_SLACK_ON, true)
	if got := m.quotaOf(id); got != -1 {
		t.Errorf("its quota is %d us, want none", got)
	}
	if v1 := exists("/sys/fs/cgroup/cpu"); v1 && m.groupNumber(id, "cpu", "cpu.shares", "") != 256 {
		t.Errorf("its weight is %d, want 256", m.groupNumber(id, "cpu", "cpu.shares", ""))
	}
	m.sharesOf(id)
	other := m.spinner(service, 1000, borgpb.Slack_SLACK_ON, true)
	got := m.sharesOf(id, other)
	t.Logf("of what both had it got %.3f, its share is 0.2", got[0])
	if got[0] < 0.05 || got[0] > 0.4 {
		t.Errorf("beside one of a whole core it got %.3f of what both had, want its share of 0.2", got[0])
	}
	if c := m.cpuTimeOf(id); c.periods != 0 || c.throttled != 0 {
		t.Errorf("the kernel held it in %d of %d periods, want none", c.throttled, c.periods)
	}
}

// TestLatencySensitiveShare: eight busy loops that nobody waits for, on the same
// processor and each promised as much, do not take away what somebody waits for.
func TestLatencySensitiveShare(t *testing.T) {
	m := newMachine(t, "container")
	ids := []*borgrpc.CopyID{m.spinner(service, 1000, borgpb.Slack_SLACK_UNSPECIFIED, true)}
	for range 8 {
		ids = append(ids, m.spinner(batch, 1000, borgpb.Slack_SLACK_UNSPECIFIED, true))
	}
	got := m.sharesOf(ids...)
	t.Logf("latency-sensitive %.3f, batch %s", got[0], fmt.Sprintf("%.3f", got[1:]))
	// By weights it is 16 of 24.
	if got[0] < 0.4 {
		t.Errorf("it got %.3f of the processor, want its share of 0.667", got[0])
	}
	for _, one := range got[1:] {
		if one > got[0]/4 {
			t.Errorf("a batch task got %.3f and the latency-sensitive one %.3f, want a sixteenth of it", one, got[0])
		}
	}
}

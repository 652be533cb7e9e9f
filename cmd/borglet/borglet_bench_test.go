package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// How long processor time is measured.
	benchCPU = 8 * time.Second
	// How long a borglet with a hundred tasks is measured, polled as often as masters do.
	benchAgent, benchPoll = 20 * time.Second, time.Second
	benchAdopted          = 100
	benchStarts           = 20
	benchBatch            = 8
)

// BenchmarkBorglet is what a borglet gives its tasks of the processor, and what it costs
// itself. Figures are called borglet.*.
func BenchmarkBorglet(b *testing.B) {
	for range b.N {
		for _, measure := range []func(*borgletBench){
			(*borgletBench).slack, (*borgletBench).besideBatch, (*borgletBench).starts, (*borgletBench).hundred,
		} {
			m := newMachine(b, "container")
			measure(&borgletBench{B: b, machine: m})
			m.kill()
		}
	}
}

type borgletBench struct {
	*testing.B
	*machine
}

// end makes room for what is measured next.
func (m *borgletBench) end(ids ...*borgrpc.CopyID) {
	for _, id := range ids {
		m.stop(id, 0)
	}
	for _, id := range ids {
		m.untilState(id, stopped)
	}
}

// cores is how much of the processor a copy gets.
func (m *borgletBench) cores(id *borgrpc.CopyID) float64 {
	before, began := m.cpuTimeOf(id), time.Now()
	time.Sleep(benchCPU)
	return float64(m.cpuTimeOf(id).since(before).used) / float64(time.Since(began))
}

// slack measures a busy loop that was promised 0.25 cores: with a hard limit, alone
// without one, and beside busy loops that were promised both cores.
func (m *borgletBench) slack() {
	id := m.spinner(service, 250, borgpb.Slack_SLACK_OFF, false)
	m.ReportMetric(m.cores(id), "borglet.slack_off.cores")
	m.end(id)
	id = m.spinner(service, 250, borgpb.Slack_SLACK_ON, false)
	m.ReportMetric(m.cores(id), "borglet.slack_on.cores")
	others := []*borgrpc.CopyID{id}
	for range 2 {
		others = append(others, m.spinner(service, 1000, borgpb.Slack_SLACK_ON, false))
	}
	m.ReportMetric(m.cores(id), "borglet.slack_on_contended.cores")
	m.end(others...)
}

// besideBatch measures tasks that somebody waits for beside eight busy loops that nobody
// waits for, on all cores: one that always computes, and how long one that often wakes
// waits for a core then.
func (m *borgletBench) besideBatch() {
	var ids []*borgrpc.CopyID
	for range benchBatch {
		ids = append(ids, m.spinner(batch, 1000, borgpb.Slack_SLACK_UNSPECIFIED, false))
	}
	busy := m.spinner(service, 1000, borgpb.Slack_SLACK_UNSPECIFIED, false)
	m.ReportMetric(m.cores(busy), "borglet.beside_batch.cores")
	m.end(busy)
	wakes := m.want(service, &borgpb.TaskSpec{
		Args:      []string{"/bin/bash", "-c", "mkfifo p; exec 3<>p; while :; do read -t 0.005 -u 3; done"},
		Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 64 << 20},
	})
	m.untilState(wakes, running)
	pid := m.processOf(wakes, "bash")
	waitedNs, turns := m.delayOf(pid)
	time.Sleep(benchCPU)
	waitedAfterNs, turnsAfter := m.delayOf(pid)
	if turnsAfter-turns < 100 {
		m.Fatalf("it woke %d times in %v, want it every few milliseconds", turnsAfter-turns, benchCPU)
	}
	m.ReportMetric(float64(waitedAfterNs-waitedNs)/float64(turnsAfter-turns)/1000, "borglet.beside_batch.delay_us")
	m.end(append(ids, wakes)...)
}

// processOf waits for a process of a copy by its name.
func (m *borgletBench) processOf(id *borgrpc.CopyID, name string) (pid string) {
	m.until(id, "running "+name, func(*borgpb.TaskReport) bool {
		for _, group := range m.cgroups(id) {
			text, _ := os.ReadFile(filepath.Join(group, "cgroup.procs"))
			for one := range strings.FieldsSeq(string(text)) {
				if comm, err := os.ReadFile("/proc/" + one + "/comm"); err == nil && strings.TrimSpace(string(comm)) == name {
					pid = one
				}
			}
		}
		return pid != ""
	})
	return pid
}

// delayOf is how long a process has waited for a core, and how often it got one.
func (m *borgletBench) delayOf(pid string) (waitedNs, turns int64) {
	text, err := os.ReadFile("/proc/" + pid + "/schedstat")
	if err != nil {
		m.Fatal(err)
	}
	var ranNs int64
	if _, err := fmt.Sscan(string(text), &ranNs, &waitedNs, &turns); err != nil {
		m.Fatalf("schedstat of process %s is %q: %v", pid, text, err)
	}
	return waitedNs, turns
}

// starts measures from the poll that orders a task until its program reads the clock,
// once the machine is warm, one task after the other.
func (m *borgletBench) starts() {
	var tookMs []float64
	for range benchStarts + 1 {
		id := m.batch("date", "+%s%N")
		began := time.Now()
		m.untilState(id, finished)
		at, err := strconv.ParseInt(strings.TrimSpace(m.logOf(id)), 10, 64)
		if err != nil {
			m.Fatal(err)
		}
		tookMs = append(tookMs, float64(at-began.UnixNano())/1e6)
	}
	// The first one had to warm up the machine.
	tookMs = tookMs[1:]
	slices.Sort(tookMs)
	m.ReportMetric(tookMs[len(tookMs)/2], "borglet.start.p50_ms")
	m.ReportMetric(tookMs[len(tookMs)-1], "borglet.start.most_ms")
}

// hundred measures what a hundred tasks cost: their shims, the borglet that adopts them,
// and that borglet when it has them and nothing happens.
func (m *borgletBench) hundred() {
	var ids []*borgrpc.CopyID
	for range benchAdopted {
		ids = append(ids, m.service("sleep", "3600"))
	}
	for _, id := range ids {
		m.untilState(id, running)
	}
	most := 0
	for _, id := range ids {
		shim := m.shimOf(id)
		// It becomes small a moment after its task runs.
		m.until(id, "watched by a small shim", func(*borgpb.TaskReport) bool { return privateKiB(m, shim) <= 2048 })
		most = max(most, privateKiB(m, shim))
	}
	m.ReportMetric(float64(most)/1024, "borglet.shim_mib")
	m.kill()
	began := time.Now()
	m.start()
	if got := len(m.poll().GetTasks()); got != benchAdopted {
		m.Fatalf("the next borglet has %d tasks, want %d", got, benchAdopted)
	}
	m.ReportMetric(float64(time.Since(began))/1e6, "borglet.adopt100.ms")
	pid := m.cmd.Process.Pid
	before, began := m.ticks(pid), time.Now()
	for time.Since(began) < benchAgent {
		time.Sleep(benchPoll)
		m.poll()
	}
	const tick = time.Second / 100
	m.ReportMetric(float64(m.ticks(pid)-before)*float64(tick)/float64(time.Since(began)), "borglet.agent100.cores")
	m.ReportMetric(float64(m.rssKiB(pid))/1024, "borglet.agent100.rss_mib")
	m.end(ids...)
}

// ticks is how much a process has computed, in hundredths of a second.
func (m *borgletBench) ticks(pid int) (sum int64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		m.Fatal(err)
	}
	// Behind the name, which may have spaces, its state is the first; time in user space
	// and in the kernel are the 12th and 13th.
	_, rest, _ := strings.Cut(string(text), ") ")
	for _, field := range strings.Fields(rest)[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			m.Fatal(err)
		}
		sum += n
	}
	return sum
}

// rssKiB is the memory of a process, with what it shares.
func (m *borgletBench) rssKiB(pid int) (kib int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		m.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		m.Fatal(err)
	}
	return kib
}

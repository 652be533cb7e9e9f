package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/fauxmaster/fleet"
	"borg/fauxmaster/workload"
	"borg/proto/borgpb"
)

const (
	millionMachines, millionTasks = 100_000, 1_000_000
	// Jobs have so many tasks in turn, and there are so many users.
	millionUsers = 100
	// An entry of the log that makes the cell has so many assignments or reports.
	millionBatch = 2_000
	// Profiles are served on the port base and so much.
	millionPprof = 300
)

var millionSizes = []int{1, 3, 10, 30, 100, 1_000}

// BenchmarkMillion is one replica whose cell has a million tasks that run on a hundred
// thousand machines (BORG_BENCH_MACHINES: on as many, ten on each), all indexed for
// watches: its memory at rest, and how long it takes from a kill until it acknowledges a
// write again. Each replica has all of the cell, however many there are; connections to
// machines are not counted, which replicas share: none of these machines answers.
func BenchmarkMillion(b *testing.B) {
	machines := benchMachines(millionMachines)
	for range b.N {
		m := &masterBench{B: b, cell: fakeCell(b, 1, 1, fleet.Life{})}
		m.cell.alter = func(spec *processSpec) {
			spec.Args = append(spec.Args, "--poll-period", "24h", "--pprof", m.pprofAddr())
		}
		m.restoreMillion(machines)
		m.must(func(ctx context.Context) error { return m.cell.StartMaster(ctx, 1) })
		m.acknowledges("first")
		m.stateBytes()
		began := m.kill(1)
		m.must(func(ctx context.Context) error { return m.cell.StartMaster(ctx, 1) })
		m.acknowledges("again")
		m.named(time.Since(began).Seconds(), "master.restart_1m.seconds")
		m.stateBytes()
	}
}

func (m *masterBench) pprofAddr() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(m.cell.PortBase+millionPprof))
}

// acknowledges waits until a job is taken.
func (m *masterBench) acknowledges(job string) {
	m.Helper()
	m.every("a submit is acknowledged", func(ctx context.Context) error {
		_, err := m.cell.submit(ctx, job, unplaceable())
		return err
	})
}

// stateBytes measures the memory of the replica at rest, and what of it is in use
// after a garbage collection.
func (m *masterBench) stateBytes() {
	m.Helper()
	time.Sleep(2 * benchRest)
	heap := m.heapInUse()
	time.Sleep(benchRest)
	rest := m.usage()[m.cell.masterName(1)]
	m.named(rest.residentBytes, "master.state_1m.bytes")
	m.named(heap, "master.state_1m.heap_bytes")
}

// heapInUse has the replica collect its garbage, and tells what is left.
func (m *masterBench) heapInUse() (bytes float64) {
	m.Helper()
	m.must(func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.pprofAddr()+"/debug/pprof/heap?gc=1&debug=1", nil)
		if err != nil {
			return err
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		all, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		_, rest, ok := strings.Cut(string(all), "# HeapAlloc = ")
		if !ok {
			return fmt.Errorf("a profile of the heap says nothing of its size: %.200s", all)
		}
		line, _, _ := strings.Cut(rest, "\n")
		bytes, err = strconv.ParseFloat(line, 64)
		return err
	})
	return bytes
}

// restoreMillion makes the replica's disk of a checkpoint, as an operator does.
func (m *masterBench) restoreMillion(machines int) {
	m.Helper()
	began := time.Now()
	file := filepath.Join(m.cell.dir, "million.ckpt")
	m.must(func(context.Context) error { return writeMillion(file, m.cell.Name, m.cell.CellID, machines) })
	made := time.Now()
	authority := m.cell.keepPapers(m.B)
	if err := os.RemoveAll(m.cell.masterDir(1)); err != nil {
		m.Fatal(err)
	}
	m.cell.must(m.B, "borgmaster", m.cell.restoreArgs(1, file, authority, "--yes")...)
	m.Logf("the checkpoint was made in %.1f s and restored in %.1f s", made.Sub(began).Seconds(), time.Since(made).Seconds())
}

// writeMillion writes a checkpoint of ten running tasks for each machine.
func writeMillion(file, name, id string, machines int) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	c, err := millionCell(id, machines)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err := workload.Stream(w, name, c); err != nil {
		return err
	}
	return w.Flush()
}

// millionCell is a cell that came about by ops, as any other.
func millionCell(id string, machines int) (*cell.Cell, error) {
	c := cell.New(id, 1)
	began := time.Now()
	apply := func(ops ...*borgpb.Op) ([]*borgpb.Result, error) {
		entry := &borgpb.Entry{CellTimeNs: int64(time.Since(began)), WallTimeNs: time.Now().UnixNano()}
		for _, op := range ops {
			data, err := proto.Marshal(op)
			if err != nil {
				return nil, err
			}
			entry.Ops = append(entry.Ops, data)
		}
		data, err := proto.Marshal(entry)
		if err != nil {
			return nil, err
		}
		results, _ := c.Apply(c.Index()+1, 1, data)
		c.Flush(func(k, v []byte) {})
		for _, r := range results {
			if r.Refusal != nil {
				return nil, fmt.Errorf("make the cell: %v", r.Refusal)
			}
			for _, item := range r.Items {
				if item.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED {
					return nil, fmt.Errorf("make the cell: %v", item)
				}
			}
		}
		return results, nil
	}
	if _, err := apply(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}}); err != nil {
		return nil, err
	}
	machine := func(k int) string { return fmt.Sprintf("m%d", k) }
	for first := 1; first <= machines; first += millionBatch {
		var ops []*borgpb.Op
		for k := first; k < min(first+millionBatch, machines+1); k++ {
			// Nobody is there.
			add := &borgpb.AddMachine{Name: machine(k), Spec: fleet.Spec(1, k, 1)}
			ops = append(ops, &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: add}})
		}
		if _, err := apply(ops...); err != nil {
			return nil, err
		}
	}
	placed := 0
	for n, left := 0, machines*(millionTasks/millionMachines); left > 0; n++ {
		tasks := min(left, millionSizes[n%len(millionSizes)])
		left -= tasks
		op, err := millionJob(n, tasks)
		if err != nil {
			return nil, err
		}
		results, err := apply(op)
		if err != nil {
			return nil, err
		}
		uid := results[0].Uid
		for first := 0; first < tasks; first += millionBatch {
			assign, reports := &borgpb.Assign{}, &borgpb.Reports{}
			for i := first; i < min(first+millionBatch, tasks); i++ {
				name := machine(1 + placed%machines)
				port := uint32(20_000 + placed/machines)
				placed++
				assign.Assignments = append(assign.Assignments, &borgpb.Assignment{Uid: uid, Index: uint32(i), Machine: name, Version: 1, Ports: []uint32{port}})
				reports.Machines = append(reports.Machines, &borgpb.MachineReport{Machine: name, Tasks: []*borgpb.TaskReport{{
					JobUid: uid, Index: uint32(i), Attempt: 1, State: int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING), Pid: int64(1_000 + placed), StartedWallNs: time.Now().UnixNano(),
				}}, Reservations: []*borgpb.TaskReservation{{JobUid: uid, Index: uint32(i), Attempt: 1, CpuMilli: 60 + int64(placed%7), MemBytes: 100 << 20}}})
			}
			if _, err := apply(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: assign}}); err != nil {
				return nil, err
			}
			if _, err := apply(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: reports}}); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

// millionJob is a job of the usual length.
func millionJob(n, tasks int) (*borgpb.Op, error) {
	spec := sleepers(tasks)
	spec.Priority = []int32{25, 110, 200}[n%3]
	spec.Task.Resources = &borgpb.Resources{CpuMilli: 100 * int64(1+n%10), MemBytes: int64(1+n%10) << 28}
	spec.Task.Ports = []string{"http"}
	spec.Task.Env = map[string]string{"CONFIG": fmt.Sprintf("/etc/service-%d.yaml", n), "LOG_LEVEL": "info"}
	raw, err := proto.Marshal(spec)
	return &borgpb.Op{
		RequestId: fmt.Sprint("job-", n), RequestWallNs: time.Now().UnixNano(),
		Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{
			User: fmt.Sprint("user-", n%millionUsers), Name: fmt.Sprint("job-", n), Spec: raw,
			Labels: map[string]string{"team": fmt.Sprint("team-", n%17), "tier": "serving"},
		}},
	}, err
}

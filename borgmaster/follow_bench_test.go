package borgmaster_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/audit"
	"borg/borgmaster/cell"
	"borg/borgmaster/journal"
	"borg/identity"
	"borg/proto/borgpb"
)

// fedLog is the log of a replica that is fed by hand.
type fedLog struct {
	borgmaster.Log
	mu       sync.RWMutex
	cell     *cell.Cell
	listener borgmaster.Listener
}

func (l *fedLog) View(f func(c *cell.Cell)) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	f(l.cell)
}

func (l *fedLog) Subscribe(listener borgmaster.Listener) { l.listener = listener }

func (l *fedLog) State() borgmaster.LogState { return borgmaster.LogState{Replica: 1} }

func (l *fedLog) apply(data []byte) []*borgpb.Result {
	l.mu.Lock()
	index := l.cell.Index() + 1
	results, events := l.cell.Apply(index, 1, data)
	l.mu.Unlock()
	l.listener.Applied(borgmaster.CommittedEntry{Index: index, Term: 1, Data: data}, results, events)
	return results
}

// opsInFedEntry is how many submits of users share an entry of the log under load.
const opsInFedEntry = 32

// BenchmarkFollow is what a submit costs each replica from the log on: its cell, and all
// that is kept of it for users; five of them do that for each.
func BenchmarkFollow(b *testing.B) {
	dir := b.TempDir()
	trail, err := audit.Open(audit.Config{Dir: filepath.Join(dir, "audit"), Replica: 1})
	if err != nil {
		b.Fatal(err)
	}
	kept, err := journal.Open(journal.Config{Dir: filepath.Join(dir, "events"), Replica: 1})
	if err != nil {
		b.Fatal(err)
	}
	log := &fedLog{cell: cell.New(testCellID, 1)}
	_, err = borgmaster.New(borgmaster.Config{
		CellName: "test", Replica: 1, Log: log, Members: noMembers{}, FirstAdmin: "root", Audit: trail, Journal: kept,
		Identity: source(b, identity.Master, "1"), Authority: ca, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var keeping sync.WaitGroup
	keeping.Go(func() { kept.Run(ctx, log) })
	b.Cleanup(func() {
		cancel()
		keeping.Wait()
		kept.Close()
		trail.Close()
	})
	spec, err := proto.Marshal(&borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 200,
		Task: &borgpb.TaskSpec{
			Resources: &borgpb.Resources{CpuMilli: 900_000, MemBytes: 1 << 20}, Args: []string{"/bin/sleep", "1000"}, GraceNs: 1e9,
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	entries := make([][]byte, (b.N+opsInFedEntry-1)/opsInFedEntry)
	began := time.Now().UnixNano()
	for i := range entries {
		now := began + int64(i)*1e6
		entry := &borgpb.Entry{CellTimeNs: int64(i) * 1e6, WallTimeNs: now}
		for n := range opsInFedEntry {
			user := fmt.Sprint("user-", n)
			op, err := proto.Marshal(&borgpb.Op{
				RequestId: fmt.Sprintf("%032x", i*opsInFedEntry+n), RequestWallNs: now, Principal: &borgpb.Principal{User: user, Role: borgpb.Role_ROLE_USER},
				Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: fmt.Sprint("job-", i), Spec: spec}},
			})
			if err != nil {
				b.Fatal(err)
			}
			entry.Ops = append(entry.Ops, op)
		}
		if entries[i], err = proto.Marshal(entry); err != nil {
			b.Fatal(err)
		}
	}
	runtime.GC()
	b.ReportAllocs()
	b.ResetTimer()
	for i, data := range entries {
		if r := log.apply(data)[0]; r.Refusal != nil {
			b.Fatal(r)
		}
		// What a replica does twice a second.
		if i%128 == 0 {
			log.cell.Flush(func(k, v []byte) {})
		}
	}
	kept.Flush(log)
	b.StopTimer()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/float64(b.N), "live-B/op")
	runtime.KeepAlive(log)
}

// noMembers is nobody.
type membership = borgmaster.Members

type noMembers struct{ membership }

func (noMembers) Removed(uint64) bool { return false }

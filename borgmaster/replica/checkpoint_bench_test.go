package replica

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// Shape of BenchmarkCheckpointLatency: so many pairs of windows, with and
	// without a checkpoint being written, in turn first; users who each make a
	// mutation every userPeriod, whatever became of the last one.
	latencyPairs  = 5
	latencyWindow = 3 * time.Second
	latencyUsers  = 16
	userPeriod    = 32 * time.Millisecond
	latencyTasks  = 300_000
)

// BenchmarkCheckpointLatency has five replicas in one process, gRPC over loopback
// and real disks, and measures how long mutations take while the elected one
// writes checkpoints without end, and while it does not. On one machine the
// checkpoint takes processor time of all five.
func BenchmarkCheckpointLatency(b *testing.B) {
	wc := newWireCell(b, 5)
	leader := wc.elected()
	assignMany(b, leader, latencyTasks)
	var made atomic.Int64
	var without, with, ratios []float64
	for pair := range latencyPairs {
		var quiet, busy float64
		for turn := range 2 {
			if (pair+turn)%2 == 0 {
				quiet = medianCommit(b, leader, &made)
				continue
			}
			ctx, stop := context.WithCancel(context.Background())
			var writing sync.WaitGroup
			writing.Go(func() {
				for ctx.Err() == nil {
					if _, err := saveTo(ctx, leader, filepath.Join(wc.dir, "checkpoint")); err != nil && ctx.Err() == nil {
						b.Error(err)
						return
					}
				}
			})
			busy = medianCommit(b, leader, &made)
			stop()
			writing.Wait()
		}
		without, with, ratios = append(without, quiet), append(with, busy), append(ratios, busy/quiet)
		b.Logf("pair %d: median %.2f ms without, %.2f ms with a checkpoint being written", pair+1, quiet, busy)
	}
	b.ReportMetric(median(without), "checkpoint.commit_latency.without_ms")
	b.ReportMetric(median(with), "checkpoint.commit_latency.with_ms")
	b.ReportMetric(median(ratios), "checkpoint.commit_latency.ratio")
}

// medianCommit is the median time of a mutation in milliseconds, counted from when
// it was due.
func medianCommit(b *testing.B, r *wireReplica, made *atomic.Int64) float64 {
	b.Helper()
	var mu sync.Mutex
	var took []float64
	var users, calls sync.WaitGroup
	start := time.Now()
	for u := range latencyUsers {
		users.Go(func() {
			due := start.Add(userPeriod * time.Duration(u) / latencyUsers)
			for ; due.Sub(start) < latencyWindow; due = due.Add(userPeriod) {
				time.Sleep(time.Until(due))
				at := due
				calls.Go(func() {
					_, err := r.Propose(context.Background(), machineOp(fmt.Sprintf("l-%d", made.Add(1))))
					if err != nil {
						b.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					took = append(took, float64(time.Since(at))/1e6)
				})
			}
		})
	}
	users.Wait()
	calls.Wait()
	return median(took)
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// BenchmarkCheckpointMillion writes a checkpoint of a cell of 1,000,000 tasks to the
// disk, synced.
func BenchmarkCheckpointMillion(b *testing.B) {
	wc := newWireCell(b, 1)
	leader := wc.elected()
	assignMany(b, leader, 1_000_000)
	var bytes int64
	b.ResetTimer()
	for range b.N {
		var err error
		if bytes, err = saveTo(context.Background(), leader, filepath.Join(wc.dir, "checkpoint")); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "checkpoint.write_1m.seconds")
	b.ReportMetric(float64(bytes), "checkpoint.size_1m_bytes")
}

// assignMany makes a cell with so many tasks that have a machine.
func assignMany(b *testing.B, r *wireReplica, tasks int) {
	b.Helper()
	jobs := benchCell(b, r, (tasks+benchJobTasks-1)/benchJobTasks)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range benchProposers {
		wg.Go(func() {
			for from := int(next.Add(benchBatch)) - benchBatch; from < tasks; from = int(next.Add(benchBatch)) - benchBatch {
				assign(b, r, jobs, from, min(from+benchBatch, tasks))
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
}

// saveTo writes a checkpoint to a file, synced, and tells its size.
func saveTo(ctx context.Context, r *wireReplica, path string) (bytes int64, err error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	if _, err := r.Checkpoint(ctx, w); err != nil {
		return 0, err
	}
	if err := w.Flush(); err != nil {
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	return f.Seek(0, io.SeekCurrent)
}

package cell

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"borg/proto/borgpb"
)

// Submits as a cell sees them when many users submit at once.
const (
	submitUsers = 512
	// Jobs of a user that are there before, and that he submits then.
	submitBefore, submitMore = 64, 16
	// Ops of an entry, and entries between two flushes.
	submitBatch, submitFlush = 16, 64
)

// submitEntries are jobs of one task that no machine holds: of each user the jobs from first
// on, so many, users in turn.
func submitEntries(b *testing.B, first, n int) (entries [][]byte) {
	l := newTestLog(b)
	spec := marshal(b, service(1, 200, 1_000_000, 1<<20))
	var ops []*borgpb.Op
	for i := range n * submitUsers {
		// An odd factor visits all users, those beside each other far apart in order.
		user := fmt.Sprintf("user-%d-%d", submitUsers, i*157%submitUsers)
		job := first + i/submitUsers
		ops = append(ops, &borgpb.Op{
			Principal: &borgpb.Principal{User: user, Role: borgpb.Role_ROLE_USER},
			RequestId: fmt.Sprintf("%032x", uint64(first*submitUsers+i)*0x9e3779b97f4a7c15), RequestWallNs: l.wallNs,
			Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: fmt.Sprint("job-", job), Spec: spec}},
		})
		if len(ops) == submitBatch {
			entries = append(entries, l.entry(ops...))
			ops = ops[:0]
		}
	}
	return entries
}

// BenchmarkSubmit submits to a cell of many jobs and users, and flushes now and then as a
// replica does. It says what of it stays in memory.
func BenchmarkSubmit(b *testing.B) {
	before, more := submitEntries(b, 0, submitBefore), submitEntries(b, submitBefore, submitMore)
	var objects, bytes, allocs uint64
	var took []time.Duration
	for range b.N {
		b.StopTimer()
		c := newBench()
		applyAll(b, c, before)
		c.Flush(func(k, v []byte) {})
		was := heapNow()
		b.StartTimer()
		for i, e := range more {
			began := time.Now()
			applyAll(b, c, [][]byte{e})
			took = append(took, time.Since(began))
			if i%submitFlush == 0 {
				c.Flush(func(k, v []byte) {})
			}
		}
		b.StopTimer()
		made := new(runtime.MemStats)
		runtime.ReadMemStats(made)
		allocs += made.Mallocs - was.Mallocs
		now := heapNow()
		objects, bytes = objects+now.HeapObjects-was.HeapObjects, bytes+now.HeapAlloc-was.HeapAlloc
		runtime.KeepAlive(c)
	}
	jobs := float64(b.N * submitMore * submitUsers)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/jobs, "ns/submit")
	slices.Sort(took)
	// Of the entry in the middle: others on the machine hold up few.
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/submitBatch, "median_ns/submit")
	b.ReportMetric(float64(allocs)/jobs, "allocs/submit")
	b.ReportMetric(float64(objects)/jobs, "objects_kept/submit")
	b.ReportMetric(float64(bytes)/jobs, "bytes_kept/submit")
}

// TestJobSize keeps a job within the size that the allocator gives it: one more word makes each
// job 64 bytes larger.
func TestJobSize(t *testing.T) {
	if size := unsafe.Sizeof(Job{}); size > 512 {
		t.Errorf("a Job has %d bytes, more than the 512 that the allocator gives; the next size is 576", size)
	}
}

// heapNow is what is left after a collection.
func heapNow() *runtime.MemStats {
	runtime.GC()
	m := new(runtime.MemStats)
	runtime.ReadMemStats(m)
	return m
}

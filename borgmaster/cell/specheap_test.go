package cell

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// overridden is a spec of some 36 KB: a large environment and 500 overrides, each of one
// task and one variable.
func overridden(n int) *borgpb.JobSpec {
	spec := service(500, 0, 1, 1)
	spec.Task.Env = make(map[string]string)
	for i := range 400 {
		spec.Task.Env[fmt.Sprintf("VARIABLE_%03d", i)] = strings.Repeat("x", 20)
	}
	for i := range 500 {
		spec.Overrides = append(spec.Overrides, &borgpb.TaskOverride{First: uint32(i), Last: uint32(i),
			Spec: &borgpb.TaskSpec{Env: map[string]string{"SHARD": fmt.Sprint(n, "-", i)}}})
	}
	return spec
}

// TestSpecsShareWhatTheyMerge: what a job with overrides takes in memory is of the order of
// what it is charged, not of the environment times the overrides.
func TestSpecsShareWhatTheyMerge(t *testing.T) {
	l := budgetLog(t)
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const jobs = 10
	before := heap()
	for i := range jobs {
		l.do(submitBy(t, "u", fmt.Sprint("j", i), overridden(i)))
	}
	grown := heap() - before
	charged := l.c.StateUseOf("u")[measureBytes]
	t.Logf("%d bytes of heap a job, charged %d", grown/jobs, charged/jobs)
	if grown > charged+charged/4 {
		t.Errorf("%d jobs take %d bytes, and are charged %d", jobs, grown, charged)
	}
	runtime.KeepAlive(l)
}

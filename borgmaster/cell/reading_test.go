package cell

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/weight"
)

// TestAlikeSpecsAreReadOnce wants jobs with the same bytes to share what they say, and
// what depends on the job or the format to be decided for each anew.
func TestAlikeSpecsAreReadOnce(t *testing.T) {
	encode := func(spec *borgpb.JobSpec) []byte {
		data, err := proto.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	c := New("c", 1)
	alone := service(1, 200, 100, 1<<20)
	child := service(1, 200, 100, 1<<20)
	child.Parent = "alice/a"
	for _, data := range [][]byte{encode(alone), encode(child)} {
		first, r := c.readSpec(JobKey{"alice", "b"}, data)
		if r != nil {
			t.Fatal(r)
		}
		again, r := c.readSpec(JobKey{"alice", "c"}, data)
		if r != nil || again == first || again.reading != first.reading {
			t.Errorf("the same bytes again: %v, shared: %v", r, again != nil && again.reading == first.reading)
		}
	}
	if _, r := c.readSpec(JobKey{"alice", "a"}, encode(child)); r == nil || r.Field != "spec.parent" {
		t.Errorf("a job that is its own parent, with a spec that was read for another: %v", r)
	}
	cron := service(1, 200, 100, 1<<20)
	cron.Kind, cron.Cron = borgpb.JobKind_JOB_KIND_CRON, &borgpb.CronSpec{Schedule: "0 3 * * *"}
	c.format = BuildFormat
	if _, r := c.readSpec(JobKey{"alice", "a"}, encode(cron)); r != nil {
		t.Fatal(r)
	}
	c.format = FormatKinds - 1
	if _, r := c.readSpec(JobKey{"alice", "a"}, encode(cron)); r == nil {
		t.Error("what a later format knows was taken from memory")
	}
	for i := range maxReadings + 1 {
		alone.Task.Args = []string{fmt.Sprint(i)}
		if _, r := c.readSpec(JobKey{"alice", "a"}, encode(alone)); r != nil {
			t.Fatal(r)
		}
	}
	// Large ones are bounded together.
	for i := range 2 * maxReadingsBytes / (maxReadingBytes / 2) {
		alone.Task.Args = make([]string, maxReadingBytes/weight.ElementBytes/2)
		alone.Task.Args[0] = fmt.Sprint(i)
		if _, r := c.readSpec(JobKey{"alice", "a"}, encode(alone)); r != nil {
			t.Fatal(r)
		}
		if c.readings.bytes > maxReadingsBytes {
			t.Fatalf("what is remembered takes %d bytes, at most %d should be", c.readings.bytes, maxReadingsBytes)
		}
	}
	if n := len(c.readings.byBytes); n > maxReadings {
		t.Errorf("%d specs are remembered, at most %d should be", n, maxReadings)
	}
	alone.Task.Args = make([]string, maxReadingBytes/weight.ElementBytes)
	data := encode(alone)
	if _, r := c.readSpec(JobKey{"alice", "a"}, data); r != nil || c.readings.of(data, c.format) != nil {
		t.Errorf("a large spec: %v, remembered: %v", r, c.readings.of(data, c.format) != nil)
	}
}

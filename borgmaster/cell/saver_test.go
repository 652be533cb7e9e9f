package cell

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// TestSaverSpec wants the spec that the cell writes for what saves a set's allocs to be
// what the protobuf library reads as one, also of a set whose saver comes in two parts.
func TestSaverSpec(t *testing.T) {
	c := New("c", 1)
	c.format = BuildFormat
	set := &borgpb.AllocSetSpec{Allocs: 3, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 100}, Saver: &borgpb.Saver{
		TimeNs: 7, Task: &borgpb.TaskSpec{Args: []string{"save", "all"}, Env: map[string]string{"TO": "sink"}, Resources: &borgpb.Resources{CpuMilli: 100}}}}
	more := &borgpb.AllocSetSpec{Saver: &borgpb.Saver{Task: &borgpb.TaskSpec{Args: []string{"again"}}}}
	data := append(marshal(t, set), marshal(t, more)...)
	if err := proto.Unmarshal(data, set); err != nil {
		t.Fatal(err)
	}
	want := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_BATCH, Tasks: 1, Priority: 200, Task: set.Saver.Task, MaxFailures: maxFailures}
	spec, r := c.saverSpec(JobKey{"ann", "place-save-0-1"}, set.Priority, data)
	if r != nil {
		t.Fatal(r)
	}
	if !proto.Equal(spec.Proto, want) || len(want.Task.Args) != 3 || !spec.unpaid {
		t.Errorf("unpaid %v, it is\n%v\nwant\n%v", spec.unpaid, spec.Proto, want)
	}
}

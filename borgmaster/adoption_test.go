package borgmaster

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// A job that is made again of what machines run has its allocs by index if its latest copies
// say so and all of them have theirs, and the cell knows of that.
func TestAdoptionBindsToAllocs(t *testing.T) {
	runs := func(index, alloc uint32, version uint64, byIndex bool) *borgrpc.Unknown {
		return &borgrpc.Unknown{
			Machine: "m1",
			Report:  &borgpb.TaskReport{JobUid: "1-7-0", Index: index, Attempt: 1, State: int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING)},
			Runs: &borgrpc.Desired{
				User: "ann", Job: "web", Kind: borgpb.JobKind_JOB_KIND_SERVICE, Priority: 200, Version: version,
				Alloc: fmt.Sprintf("ann/pool/%d", alloc), AllocByIndex: byIndex, Spec: &borgpb.TaskSpec{Args: []string{"/bin/x"}},
			},
		}
	}
	for name, q := range map[string]struct {
		format uint32
		found  []*borgrpc.Unknown
		want   bool
	}{
		"all in theirs":             {cell.BuildFormat, []*borgrpc.Unknown{runs(0, 0, 3, true), runs(1, 1, 3, true)}, true},
		"in any":                    {cell.BuildFormat, []*borgrpc.Unknown{runs(0, 0, 3, false), runs(1, 1, 3, false)}, false},
		"an update has yet to move": {cell.BuildFormat, []*borgrpc.Unknown{runs(0, 0, 3, true), runs(1, 0, 2, false)}, false},
		"an update has moved all":   {cell.BuildFormat, []*borgrpc.Unknown{runs(0, 0, 3, true), runs(1, 1, 2, false)}, true},
		"an update gave it up":      {cell.BuildFormat, []*borgrpc.Unknown{runs(0, 0, 2, true), runs(1, 1, 3, false)}, false},
		"an older format":           {cell.FormatAllocIndex - 1, []*borgrpc.Unknown{runs(0, 0, 3, true)}, false},
	} {
		op, why := Adoption(q.format, q.found)
		if why != "" {
			t.Fatalf("%s: %s", name, why)
		}
		var spec borgpb.JobSpec
		if err := proto.Unmarshal(op.Spec, &spec); err != nil {
			t.Fatal(err)
		}
		if spec.AllocSet != "ann/pool" || spec.AllocByIndex != q.want {
			t.Errorf("%s: in %s by index: %v, want %v", name, spec.AllocSet, spec.AllocByIndex, q.want)
		}
	}
}

package borgmaster_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestANewCellTakesTheNewestFields: a cell begins with format 1 and is raised when all replicas
// have reported. A change that needs a later format waits for that, at each replica.
func TestANewCellTakesTheNewestFields(t *testing.T) {
	newest := func(name string) *borgpb.Op {
		op := submit(t, "alice", name, 1)
		spec := new(borgpb.JobSpec)
		if err := proto.Unmarshal(op.GetSubmitJob().Spec, spec); err != nil {
			t.Fatal(err)
		}
		spec.Kind, spec.Priority, spec.Task.MaxRuntimeNs = borgpb.JobKind_JOB_KIND_BATCH, 100, 3600e9
		data, err := proto.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		op.GetSubmitJob().Spec = data
		return op
	}
	for i := range 20 {
		tc := newCell(t, 3, nil)
		at := tc.client(1+i%3, "alice")
		if i%2 == 0 {
			resp, err := at.Validate(t.Context(), &borgrpc.ValidateRequest{Ops: []*borgpb.Op{tc.op(newest("web"))}})
			if err != nil || resp.Refusal != nil {
				t.Fatalf("cell %d, Validate: %v, %v", i, resp, err)
			}
		}
		tc.must(at, newest("web"))
		for _, stop := range tc.stop {
			stop()
		}
	}
}

// TestACellThatIsNotRaised: while a replica runs an older build, what needs a later format is
// refused at once.
func TestACellThatIsNotRaised(t *testing.T) {
	tc := newCell(t, 2, func(replica int, c *borgmaster.Config) {
		if replica == 2 {
			c.MaxFormat = 2
		}
	})
	for replica := 1; replica <= 2; replica++ {
		op := tc.op(&borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: "root", Name: "a"}}})
		validated, err := tc.client(replica, "root").Validate(t.Context(), &borgrpc.ValidateRequest{Ops: []*borgpb.Op{op}})
		if err != nil || !strings.Contains(validated.GetRefusal().GetMessage(), "format 2") {
			t.Errorf("replica %d, Validate: %v, %v", replica, validated, err)
		}
		resp, err := tc.client(replica, "root").Mutate(t.Context(), &borgrpc.MutateRequest{Op: op})
		if err != nil || !strings.Contains(resp.GetResult().GetRefusal().GetMessage(), "format 2") {
			t.Errorf("replica %d, Mutate: %v, %v", replica, resp, err)
		}
	}
}

package cell

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
	"borg/proto/weight"
)

// TestWeightOfMessages: what a message is charged covers Go's type of it, for each type
// that a spec may hold.
func TestWeightOfMessages(t *testing.T) {
	seen := make(map[protoreflect.FullName]bool)
	var look func(m protoreflect.Message)
	look = func(m protoreflect.Message) {
		md := m.Descriptor()
		if seen[md.FullName()] {
			return
		}
		seen[md.FullName()] = true
		size := int64(reflect.TypeOf(m.Interface()).Elem().Size())
		if charged := weight.Of(md, nil).Bytes; charged < size {
			t.Errorf("%s takes %d bytes and is charged %d", md.FullName(), size, charged)
		}
		for i := range md.Fields().Len() {
			fd := md.Fields().Get(i)
			switch {
			case fd.IsList() && fd.Message() != nil:
				look(m.NewField(fd).List().NewElement().Message())
			case !fd.IsMap() && fd.Message() != nil:
				look(m.NewField(fd).Message())
			}
		}
	}
	look(new(borgpb.JobSpec).ProtoReflect())
	look(new(borgpb.AllocSetSpec).ProtoReflect())
	if len(seen) < 15 {
		t.Errorf("only %d types were looked at", len(seen))
	}
}

// heapInUse is the memory that is in use.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestWeightOfShapes: a decoded spec takes at most what it is charged, whatever it is
// that there is much of.
func TestWeightOfShapes(t *testing.T) {
	shapes := map[string]func(s *borgpb.JobSpec){
		"nothing":    func(*borgpb.JobSpec) {},
		"empty args": func(s *borgpb.JobSpec) { s.Task.Args = make([]string, 32_000) },
		"short args": func(s *borgpb.JobSpec) {
			for range 32_000 {
				s.Task.Args = append(s.Task.Args, "x")
			}
		},
		"one long arg": func(s *borgpb.JobSpec) { s.Task.Args = []string{strings.Repeat("x", 200_000)} },
		"environment": func(s *borgpb.JobSpec) {
			s.Task.Env = make(map[string]string)
			for i := range maxEnv {
				s.Task.Env[fmt.Sprint("A", i)] = "x"
			}
		},
		"one variable": func(s *borgpb.JobSpec) { s.Task.Env = map[string]string{"A": ""} },
		"extensions": func(s *borgpb.JobSpec) {
			s.Extensions = make(map[string][]byte)
			for i := range maxExtensions {
				s.Extensions[fmt.Sprint(i)] = nil
			}
		},
		"overrides": func(s *borgpb.JobSpec) {
			for i := range maxOverrides {
				s.Overrides = append(s.Overrides, &borgpb.TaskOverride{First: uint32(i), Last: uint32(i),
					Spec: &borgpb.TaskSpec{Env: map[string]string{"A": ""}, Resources: &borgpb.Resources{Devices: map[string]int64{"gpu": 1}}}})
			}
		},
		"health command": func(s *borgpb.JobSpec) { s.Task.Health = &borgpb.HealthCheck{Command: make([]string, 32_000)} },
	}
	for name, fill := range shapes {
		spec := service(1, 0, 1, 1)
		fill(spec)
		data, err := proto.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		weight, r := weighSpec(jobShape, data)
		if r != nil {
			t.Errorf("%s: %v", name, r)
			continue
		}
		const n = 20
		kept := make([]*borgpb.JobSpec, n)
		before := heapInUse()
		for i := range kept {
			kept[i] = new(borgpb.JobSpec)
			if err := proto.Unmarshal(data, kept[i]); err != nil {
				t.Fatal(err)
			}
		}
		took := (heapInUse()-before)/n + int64(len(data))
		runtime.KeepAlive(kept)
		t.Logf("%s: %d bytes encoded, %d in memory, charged %d", name, len(data), took, weight)
		if took > weight+weight/10+512 {
			t.Errorf("%s takes %d bytes and is charged %d", name, took, weight)
		}
	}
}

// TestCost: an op of many elements costs as much as one of many bytes, wherever they are,
// and an ordinary one what its bytes cost.
func TestCost(t *testing.T) {
	plain := submitBy(t, "u", "j", service(1, 0, 1, 1))
	if got, want := Cost(plain), proto.Size(plain); got != want {
		t.Errorf("an ordinary submit costs %d, want %d", got, want)
	}
	args := service(1, 0, 1, 1)
	args.Task.Args = make([]string, 10_000)
	for what, op := range map[string]*borgpb.Op{
		"args":        submitBy(t, "u", "j", args),
		"update":      updateJob(t, "j", args),
		"labels":      {Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "u", Name: "j", Labels: numbered[string](10_000)}}},
		"removed":     {Op: &borgpb.Op_SetLabels{SetLabels: &borgpb.SetLabels{RemoveLabels: make([]string, 10_000)}}},
		"measures":    {Op: &borgpb.Op_SetStateBudget{SetStateBudget: &borgpb.SetStateBudget{Amounts: make([]*borgpb.StateAmount, 10_000)}}},
		"annotations": {Op: &borgpb.Op_SetTaskNote{SetTaskNote: &borgpb.SetTaskNote{Annotations: numbered[string](10_000)}}},
	} {
		if got, least := Cost(op), 9_900*elementCost; got < least {
			t.Errorf("%s: 10,000 elements cost %d, want at least %d", what, got, least)
		}
		if n := Elements(op); n < 10_000 || n > 10_100 {
			t.Errorf("%s: counted %d elements", what, n)
		}
	}
}

package watch

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// odd is a job of few bytes or many elements, whatever of it is much.
func odd(name, what string, version int) *borgpb.Op {
	spec := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 40, Priority: 200, Task: &borgpb.TaskSpec{
		Args: []string{fmt.Sprint(version)}, Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1}}}
	var annotations map[string]string
	switch what {
	case "empty args":
		spec.Task.Args = append(spec.Task.Args, make([]string, 30_000)...)
	case "one long arg":
		spec.Task.Args = append(spec.Task.Args, strings.Repeat("x", 200<<10))
	case "environment of layers":
		spec.Task.Env = make(map[string]string)
		for i := range 3_000 {
			spec.Task.Env[fmt.Sprint("A", i)] = "x"
		}
		for i := range uint32(20) {
			spec.Overrides = append(spec.Overrides, &borgpb.TaskOverride{First: i, Last: i, Spec: &borgpb.TaskSpec{Env: map[string]string{"A0": fmt.Sprint(i)}}})
		}
	case "annotations":
		annotations = map[string]string{"k": strings.Repeat("x", 60<<10)}
	case "many annotations":
		annotations = make(map[string]string)
		for i := range 1_000 {
			annotations[fmt.Sprint(i)] = strings.Repeat("x", 40)
		}
	case "extensions":
		spec.Extensions = map[string][]byte{"x": make([]byte, 60<<10)}
	}
	data := marshal(spec)
	if version > 0 {
		return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "alice", Name: name, Annotations: annotations, Spec: data}}}
	}
	return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: name, Annotations: annotations, Spec: data}}}
}

// TestPartsAreBounded: whatever jobs are made of, each part of a message has as many bytes
// on the wire as was said, or one change alone; the parts are the message; and nothing is
// counted as waiting when all was taken.
func TestPartsAreBounded(t *testing.T) {
	l := newLog(t, Config{})
	shapes := []string{"empty args", "one long arg", "environment of layers", "annotations", "many annotations", "extensions"}
	// What waits for these is of all that follows.
	live := make(map[borgpb.ObjectKind]*Watch)
	for _, kind := range []borgpb.ObjectKind{borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_TASK} {
		live[kind] = l.watch(Query{Kind: kind}, nil)
		drain(t, live[kind])
	}
	look := func(w *Watch) {
		t.Helper()
		for _, m := range drain(t, w) {
			var all []*borgrpc.WatchChange
			more := true
			for part := range m.Parts() {
				if !more {
					t.Fatal("a part follows the last one")
				}
				more = part.More
				if n := proto.Size(part); n > messageBytes+64 && len(part.Changes) > 1 || n > 1<<20 {
					t.Errorf("a part of %d changes has %d bytes", len(part.Changes), n)
				}
				all = append(all, part.Changes...)
			}
			whole := m.Proto()
			if more != whole.More || len(all) != len(whole.Changes) {
				t.Fatalf("the parts have %d of %d changes, and end with more=%v", len(all), len(whole.Changes), more)
			}
			for i := range all {
				if all[i].Uid != whole.Changes[i].Uid {
					t.Fatalf("change %d of the parts is another one", i)
				}
			}
		}
		if w.waiting.changes != 0 || w.waiting.bytes != 0 {
			t.Errorf("all was taken, and %d changes of %d bytes wait", w.waiting.changes, w.waiting.bytes)
		}
	}
	for i, what := range shapes {
		name := fmt.Sprint("j", i)
		for version := range 2 {
			l.apply(odd(name, what, version))
			for _, w := range live {
				look(w)
			}
		}
		for kind := range live {
			look(l.watch(Query{Kind: kind}, nil))
		}
		l.apply(kill(name))
		for _, w := range live {
			look(w)
		}
	}
}

// TestHeldSpecsCount: changes that hold the specs of jobs that are gone count them: jobs that
// come and go leave no more behind than what is held at most.
func TestHeldSpecsCount(t *testing.T) {
	const most = 8 << 20
	l := newLog(t, Config{Bytes: most})
	for i := range 100 {
		l.apply(odd("j", "empty args", 0))
		l.apply(kill("j"))
		if _, bytes := l.h.Held(); bytes > most && len(l.h.ring) > 1 {
			t.Fatalf("after %d jobs %d bytes are held", i, bytes)
		}
	}
	_, bytes := l.h.Held()
	weight := int(l.c.Job(cell.JobKey{User: "alice", Name: "j"}).PresentSpec().MemoryBytes())
	if n := len(l.h.ring); bytes < most/2 || n > 4*most/weight+4 {
		t.Errorf("%d entries of %d bytes are held, of jobs whose specs take %d", n, bytes, weight)
	}
}

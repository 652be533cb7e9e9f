package history

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"borg/proto/borgpb"

	"google.golang.org/protobuf/proto"
)

// TestTranscripts checks histories written by hand. A line is
//
//	CALL..RETURN CLIENT KEY KIND [TASKS] [spec=N] [ends] [expect=N] [late] -> ANSWER [uid=U] [v=N] [dead]
//
// To rewrite what comes of them: go test ./history -rewrite, and read the diff.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var records []Record
			for line := range strings.Lines(d.Input) {
				r, err := parse(line)
				if err != nil {
					d.Fatalf(t, "%q: %v", line, err)
				}
				records = append(records, r)
			}
			v := Check(records, 0)
			return fmt.Sprintf("%d keys, %d operations, %d illegal\n%s", v.Keys, v.Ops, v.Illegal, v.Detail)
		})
	})
}

func parse(line string) (Record, error) {
	asked, answered, ok := strings.Cut(line, " -> ")
	if !ok {
		return Record{}, fmt.Errorf("no ->")
	}
	f := strings.Fields(asked)
	r := Record{Key: f[2]}
	call, ret, _ := strings.Cut(f[0], "..")
	r.CallNs, _ = strconv.ParseInt(call, 10, 64)
	r.ReturnNs, _ = strconv.ParseInt(ret, 10, 64)
	r.Client, _ = strconv.Atoi(strings.TrimPrefix(f[1], "c"))
	for k := Submit; k <= Read; k++ {
		if k.String() == f[3] {
			r.Kind = k
		}
	}
	words := strings.Fields(answered)
	for a := Unknown; a <= Refused; a++ {
		if a.String() == words[0] {
			r.Answer = a
			ok = false
		}
	}
	if r.Kind == 0 || ok {
		return r, fmt.Errorf("unknown kind or answer")
	}
	for _, word := range append(f[4:], words[1:]...) {
		name, value, _ := strings.Cut(word, "=")
		n, _ := strconv.ParseUint(value, 10, 64)
		switch name {
		case "spec":
			r.Spec = n
		case "ends":
			r.MayEnd = true
		case "late":
			r.Late = true
		case "expect":
			r.ExpectVersion = n
		case "uid":
			r.UID = value
		case "v":
			r.Version = n
		case "dead":
			r.IsDead = true
		default:
			tasks, err := strconv.ParseUint(name, 10, 32)
			if err != nil {
				return r, fmt.Errorf("%q means nothing", word)
			}
			r.Tasks = uint32(tasks)
		}
	}
	return r, nil
}

// What the cell says becomes a record that says the same.
func TestFromTheWire(t *testing.T) {
	spec, err := proto.Marshal(&borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_BATCH, Tasks: 3})
	if err != nil {
		t.Fatal(err)
	}
	submit := &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "u", Name: "a", Spec: spec}}}
	for _, c := range []struct {
		res  *borgpb.Result
		want string
	}{
		{&borgpb.Result{Uid: "1-2-0", Version: 1}, "ok uid 1-2-0 version 1"},
		{refusal(borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS, "name"), "already-exists"},
		{refusal(borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND, ""), "not-found"},
		{refusal(borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND, "spec.parent"), "refused"},
		{refusal(borgpb.RefusalKind_REFUSAL_KIND_STATE, ""), "dead"},
		{refusal(borgpb.RefusalKind_REFUSAL_KIND_CONFLICT, "expect_version"), "conflict"},
		{refusal(borgpb.RefusalKind_REFUSAL_KIND_LIMIT, "spec.tasks"), "refused"},
	} {
		r, ok := Asked(4, 10, submit)
		r.Answered(20, c.res)
		if want := fmt.Sprintf("10..20 client 4: submit tasks 3 spec %x -> %s", r.Spec, c.want); !ok || r.String() != want || !r.MayEnd {
			t.Errorf("%v becomes %q, want %q", c.res, r, want)
		}
	}
	if _, ok := Asked(0, 0, &borgpb.Op{Op: &borgpb.Op_AddMachine{}}); ok {
		t.Errorf("adding a machine became a record of a job")
	}
	if r := Showed(1, "u/a", 1, 2, nil); r.String() != "1..2 client 1: read -> not-found" {
		t.Errorf("a read of nothing became %q", r)
	}
	r := Showed(1, "u/a", 1, 2, &borgpb.Job{Meta: &borgpb.Meta{Uid: "1-2-0", Version: 3}, Spec: &borgpb.JobSpec{Tasks: 5}, Status: &borgpb.JobStatus{State: borgpb.State_STATE_DEAD}})
	if r.String() != "1..2 client 1: read -> ok uid 1-2-0 version 3 tasks 5 dead" {
		t.Errorf("a read of a dead job became %q", r)
	}
}

func refusal(kind borgpb.RefusalKind, field string) *borgpb.Result {
	return &borgpb.Result{Refusal: &borgpb.Refusal{Kind: kind, Field: field}}
}

package borgmaster

import (
	"strings"
	"testing"
	"unicode"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// odd are texts that must not get in where people, paths or lines are meant.
var odd = []string{"\x00", "a\nb", "a\x1b[2Jb", "a\rb", "\u202ea", "a\u200bb", "a\u009bb", "a\u2028b", "a\tb"}

// opWith is an op with a text in one place; the places are told by number.
func opWith(place int, text string) (op *borgpb.Op, where string) {
	spec := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 100,
		Task: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 20}, Args: []string{"/bin/x"}}}
	submit := &borgpb.SubmitJob{User: "ann", Name: "web"}
	machine := &borgpb.AddMachine{Name: "m1", Spec: &borgpb.MachineSpec{Addr: "m1:1", Capacity: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30}}}
	op = &borgpb.Op{RequestId: "r", RequestWallNs: 1}
	ofMachine := false
	switch place {
	case 0:
		where, submit.Name = "name of a job", text
	case 1:
		where, submit.Labels = "value of a label", map[string]string{"a": text}
	case 2:
		where, submit.Labels = "key of a label", map[string]string{text: "a"}
	case 3:
		where, spec.Task.Cwd = "directory", "/"+text
	case 4:
		where, spec.Task.Mounts = "mount", []*borgpb.Mount{{Source: "/data/" + text, Path: "/data"}}
	case 5:
		where, spec.Task.Constraints = "constraint", []*borgpb.Constraint{{Key: "rack", Relation: borgpb.Relation_RELATION_EQUAL, Value: text}}
	case 6:
		where, spec.Task.Packages = "package", []*borgpb.Package{{Name: text, Path: "/p"}}
	case 7:
		where, ofMachine, machine.Name = "name of a machine", true, text
	case 8:
		where, ofMachine, machine.Spec.Addr = "address", true, text
	case 9:
		where, ofMachine, machine.Spec.Attributes = "attribute", true, map[string]string{"hostname": text}
	case 10:
		where, op.RequestId = "request id", text
	case 11:
		where, submit.User = "user", text
	case 12:
		where, spec.Task.Rootfs = "rootfs", "/a/"+text
	default:
		return nil, ""
	}
	if ofMachine {
		op.Op = &borgpb.Op_AddMachine{AddMachine: machine}
		return op, where
	}
	submit.Spec, _ = proto.Marshal(spec)
	op.Op = &borgpb.Op_SubmitJob{SubmitJob: submit}
	return op, where
}

func TestOddTextsAreRefused(t *testing.T) {
	for place := 0; ; place++ {
		op, where := opWith(place, "a")
		if op == nil {
			break
		}
		if r := checkTexts(op, specIn(op)); r != nil {
			t.Errorf("%s %q is refused: %v", where, "a", r)
		}
		if data, spec := specBytes(op); spec != nil && !lookUpTextFields(spec.ProtoReflect().Descriptor()).plain(data) {
			t.Errorf("%s %q is not plain", where, "a")
		}
		for _, text := range odd {
			if op, _ := opWith(place, text); checkTexts(op, specIn(op)) == nil {
				t.Errorf("%s %q is taken", where, text)
			} else if r := checkTexts(op, specIn(op)); strings.ContainsFunc(r.Message, func(r rune) bool { return !unicode.IsPrint(r) }) || r.Field == "" {
				t.Errorf("%s %q is refused by a message that shows it: %q", where, text, r.Message)
			}
		}
	}
	for _, place := range []int{3, 4, 12} {
		for _, text := range []string{"..", "../etc", "a/../../b", "a/.."} {
			if op, where := opWith(place, text); checkTexts(op, specIn(op)) == nil {
				t.Errorf("%s %q is taken", where, text)
			}
		}
		if op, where := opWith(place, "a..b/...c"); checkTexts(op, specIn(op)) != nil {
			t.Errorf("%s a..b/...c is refused", where)
		}
	}
	// A program may be given anything.
	spec, _ := proto.Marshal(&borgpb.JobSpec{Task: &borgpb.TaskSpec{Args: []string{"sh", "-c", "a\nb\x1b"}, Env: map[string]string{"PS1": "\x1b[1m"}}})
	op := &borgpb.Op{Reason: "two\n\tlines", Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "a", Name: "b", Spec: spec}}}
	if r := checkTexts(op, specIn(op)); r != nil {
		t.Errorf("an argument with two lines: %v", r)
	}
	if op.Reason = "a\x1b[2J"; checkTexts(op, specIn(op)) == nil {
		t.Error("a reason that clears the screen is taken")
	}
}

// FuzzTexts: whatever a text is, what both the door of the log and the cell take
// can be seen, and leads nowhere else; what they say of it can be seen too.
func FuzzTexts(f *testing.F) {
	for place := range uint8(13) {
		for _, text := range append(odd, "web", "..", "a/../b", "10.0.0.1:80", strings.Repeat("x", 300)) {
			f.Add(place, text)
		}
	}
	f.Fuzz(func(t *testing.T, place uint8, text string) {
		op, where := opWith(int(place), strings.ToValidUTF8(text, ""))
		if op == nil {
			return
		}
		refused := checkTexts(op, specIn(op))
		if data, spec := specBytes(op); spec != nil && proto.Unmarshal(data, spec) == nil && lookUpTextFields(spec.ProtoReflect().Descriptor()).plain(data) {
			if r := textsOf(spec.ProtoReflect()); r != nil {
				t.Errorf("%s %q is plain, and refused by %v", where, text, r)
			}
		}
		if refused == nil {
			c := cell.New("fuzz", 1)
			op.RequestWallNs = 1e18
			data, err := proto.Marshal(op)
			if err != nil {
				t.Fatal(err)
			}
			entry, err := proto.Marshal(&borgpb.Entry{CellTimeNs: 1, WallTimeNs: 1e18, Ops: [][]byte{data}})
			if err != nil {
				t.Fatal(err)
			}
			results, events := c.Apply(1, 1, entry)
			refused = results[0].Refusal
			for _, e := range events {
				p := e.Proto()
				for _, shown := range []string{p.Object, p.Machine, p.Reason} {
					if strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }) {
						t.Errorf("%s %q: an event tells %q", where, text, shown)
					}
				}
			}
		}
		if refused != nil {
			for _, shown := range []string{refused.Message, refused.Object, refused.Field} {
				if strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("%s %q is refused by %q", where, text, shown)
				}
			}
			return
		}
		for _, r := range text {
			if !unicode.IsPrint(r) && r != unicode.ReplacementChar {
				t.Errorf("%s %q is taken, with %U", where, text, r)
			}
		}
		if (place == 3 || place == 4 || place == 12) && strings.Contains("/"+text+"/", "/../") {
			t.Errorf("%s %q is taken", where, text)
		}
	})
}

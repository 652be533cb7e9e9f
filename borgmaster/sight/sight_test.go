package sight_test

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"borg/borgmaster/cell"
	"borg/borgmaster/sight"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// privateCell has jobs of alice, of which one is shared with bob's group.
func privateCell(t *testing.T) *cell.Cell {
	t.Helper()
	c := cell.New("test", 1)
	spec, err := proto.Marshal(&borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Task: &borgpb.TaskSpec{Args: []string{"true"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range []*borgpb.Op{
		{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}},
		{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: "root", Capability: string(cell.Admin)}}},
		{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: "own", Spec: spec}}},
		{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: "shown", Spec: spec, Labels: map[string]string{cell.ShareLabel: "team"}}}},
		{Op: &borgpb.Op_SetVisibility{SetVisibility: &borgpb.SetVisibility{Policy: &borgpb.Visibility{Private: true, Groups: []*borgpb.ShareGroup{{Name: "team", Users: []string{"bob"}}}}}}},
	} {
		data, err := proto.Marshal(op)
		if err != nil {
			t.Fatal(err)
		}
		entry, err := proto.Marshal(&borgpb.Entry{CellTimeNs: int64(c.Index() + 1), WallTimeNs: int64(c.Index() + 1), Ops: [][]byte{data}})
		if err != nil {
			t.Fatal(err)
		}
		if results, _ := c.Apply(c.Index()+1, 1, entry); results[0].GetRefusal() != nil {
			t.Fatalf("%v: %v", op, results[0])
		}
	}
	return c
}

func lens(c *cell.Cell, user string) *sight.Lens {
	return sight.Of(c, user, c.SightOf(user, c.Has(user, cell.Admin)))
}

func TestWhoSeesWhat(t *testing.T) {
	c := privateCell(t)
	for _, tt := range []struct {
		user, name string
		want       bool
	}{
		{"alice", "alice/own", true}, {"alice", "alice/gone/7", true}, {"alice", "bob/x", false},
		{"bob", "alice/own/0", false}, {"bob", "alice/shown", true}, {"bob", "alice/shown/0", true}, {"bob", "alice/gone", false},
		{"carl", "alice/shown", false}, {"carl", "nonsense", false}, {"", "alice/shown", false},
		{"root", "alice/own", true},
	} {
		if got := lens(c, tt.user).Name(tt.name); got != tt.want {
			t.Errorf("%q sees %s: %v, want %v", tt.user, tt.name, got, tt.want)
		}
	}
	if lens(c, "root") != nil {
		t.Error("an admin has a lens")
	}
	if sight.OfTask(c, "root") == nil {
		t.Error("the tasks of an admin see everything")
	}
}

func TestText(t *testing.T) {
	l := lens(privateCell(t), "bob")
	for text, want := range map[string]string{
		"it ended": "it ended",
		"makes room for bob/x/0 (priority 3, free): cheap":                     "makes room for bob/x/0 (priority 3, free): cheap",
		"makes room for alice/shown/0 (priority 3, free)":                      "makes room for alice/shown/0 (priority 3, free)",
		"makes room for alice/own/0 (priority 3, free): carl/y/1 stays":        "makes room for another user's work (priority 3, free)",
		"moved to m1, which makes room for alice/own/0":                        "moved to m1, which makes room for another user's work",
		"it is dead: makes room for alice/none/0 (priority 3, free): see":      "it is dead: makes room for another user's work (priority 3, free)",
		"it waits: no room; it gave way to alice/own/0":                        "it waits: no room; it gave way to another user's work",
		"it gave way to alice/own/0 (priority 300, production): m1 costs less": "it gave way to another user's work (priority 300, production)",
	} {
		if got := l.Text(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

// TestClean: foreign names are taken out of a copy, and foreign objects withhold an answer.
func TestClean(t *testing.T) {
	c := privateCell(t)
	l := lens(c, "bob")
	answer := &borgrpc.SafeToDrainResponse{Verdicts: []*borgrpc.DrainVerdict{{
		Homeless: []string{"alice/own/0", "bob/x/0"},
		Blockers: []*borgpb.DrainBlocker{{Task: "bob/x/0", Job: "alice/own", Reason: "alice/own/0 is down"}},
	}}}
	was := proto.Clone(answer)
	got, err := l.Clean(answer)
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(was, answer) {
		t.Errorf("the answer itself was changed: %v", answer)
	}
	want := &borgrpc.SafeToDrainResponse{Verdicts: []*borgrpc.DrainVerdict{{
		Homeless: []string{sight.Another, "bob/x/0"},
		Blockers: []*borgpb.DrainBlocker{{Task: "bob/x/0", Job: sight.Another, Reason: "it may not be disturbed yet"}},
	}}}
	if !proto.Equal(got, want) {
		t.Errorf("it is %v, want %v", got, want)
	}
	for _, foreign := range []proto.Message{
		&borgrpc.ListJobsResponse{Jobs: []*borgpb.Job{{Meta: &borgpb.Meta{User: "alice", Name: "own"}}}},
		&borgrpc.EventsResponse{Events: []*borgpb.Event{{ObjectKind: borgpb.ObjectKind_OBJECT_KIND_TASK, Object: "alice/own/0"}}},
		&borgrpc.EventsResponse{Events: []*borgpb.Event{{ObjectKind: 99, Object: "m1"}}},
		// From before the job that is shared was made.
		&borgrpc.EventsResponse{Events: []*borgpb.Event{{ObjectKind: borgpb.ObjectKind_OBJECT_KIND_JOB, Object: "alice/shown", Index: 2}}},
		&borgrpc.ListQuotasResponse{Quotas: []*borgrpc.QuotaUse{{User: "alice"}}},
		&borgrpc.ListVolumesResponse{Volumes: []*borgpb.VolumeStatus{{User: "alice", Job: "own"}}},
		&borgrpc.HistoryResponse{Usage: []*borgpb.UsageRow{{Job: "alice/own"}}},
		&borgrpc.HistoryResponse{Picture: []*borgpb.ObjectFacts{{Kind: borgpb.ObjectKind_OBJECT_KIND_JOB, Name: "alice/own"}}},
		&borgrpc.ListUnknownResponse{Unknown: []*borgrpc.Unknown{{Runs: &borgrpc.Desired{User: "alice", Job: "own"}}}},
	} {
		if got, err := l.Clean(foreign); !errors.Is(err, sight.ErrWithheld) {
			t.Errorf("%v is sent to bob as %v, %v", foreign, got, err)
		}
		if got, err := lens(c, "root").Clean(foreign); err != nil || got != foreign {
			t.Errorf("%v is not sent to an admin as it is: %v, %v", foreign, got, err)
		}
	}
}

// whose are the messages that say whose they are by a field user and are looked at, and
// those that need not be, with why.
var whose = map[protoreflect.FullName]string{
	"borg.Meta": "withheld", "borg.Event": "withheld", "borg.VolumeStatus": "withheld", "borg.Attempt": "withheld",
	"borgrpc.Desired": "withheld", "borgrpc.QuotaUse": "withheld", "borgrpc.TaskBounds": "withheld", "borgrpc.StateShare": "withheld",
	"borg.Drain":           "the admin who asked for it",
	"borg.Quarantine":      "who asked for it, of an attempt that is looked at",
	"borg.VolumeName":      "in what borglets are told alone",
	"borgrpc.FileStatus":   "files are asked for by their owner or an admin",
	"borgrpc.SecretStatus": "secrets are asked for by their owner or an admin",
}

// TestEachMessageSaysWhoseItIs: a new message in an answer with a user in it needs a word.
func TestEachMessageSaysWhoseItIs(t *testing.T) {
	seen := map[protoreflect.FullName]bool{}
	var walk func(d protoreflect.MessageDescriptor)
	walk = func(d protoreflect.MessageDescriptor) {
		if seen[d.FullName()] || d.FullName() == "borg.Op" {
			return
		}
		seen[d.FullName()] = true
		for i := range d.Fields().Len() {
			fd := d.Fields().Get(i)
			if fd.Kind() == protoreflect.StringKind && fd.Name() == "user" && whose[d.FullName()] == "" {
				t.Errorf("%s has a user: withhold it in clean.go from who may not see that, or say here why not", d.FullName())
			}
			if fd.Message() != nil {
				walk(fd.Message())
			}
		}
	}
	protoregistry.GlobalFiles.RangeFilesByPackage("borgrpc", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			if name := f.Services().Get(i).Name(); name == "BorgletService" || name == "RaftService" || name == "ReplicaService" || name == "SchedulingService" {
				continue
			}
			for j := range f.Services().Get(i).Methods().Len() {
				walk(f.Services().Get(i).Methods().Get(j).Output())
			}
		}
		return true
	})
}

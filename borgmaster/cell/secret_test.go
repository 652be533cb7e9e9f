package cell

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

func raised(t *testing.T, format uint32) *testLog {
	t.Helper()
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: format}}})
	return l
}

func setSecret(user, name string, version uint64, bytes int) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_SetSecret{SetSecret: &borgpb.SetSecret{User: user, Name: name, Version: version, KeyId: "00000000000000aa", Sealed: make([]byte, bytes)}}}
}

func (l *testLog) refusalOf(op *borgpb.Op) *borgpb.Refusal {
	results, _ := l.apply(op)
	return results[0].Refusal
}

// TestSecretLimits: of one value, of a user, and of the whole cell. What is at a
// limit is taken, and one more is not; what goes makes room.
func TestSecretLimits(t *testing.T) {
	l := raised(t, FormatSecrets)
	const full = MaxSecretBytes + sealBytes
	if r := l.refusalOf(setSecret("u", "big", 1, full+1)); r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_INVALID {
		t.Errorf("a value that is too large: %v", r)
	}
	taken := 0
	for ; taken*full+full <= maxSecretsBytes; taken++ {
		l.do(setSecret(fmt.Sprintf("u%d", taken/maxSecretsOfUser), fmt.Sprintf("s%d", taken%maxSecretsOfUser), 1, full))
	}
	if r := l.refusalOf(setSecret("u0", "one-more", 1, sealBytes)); r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_LIMIT || !strings.Contains(r.Message, "has 100 secrets") {
		t.Errorf("one more of a user who has %d: %v", maxSecretsOfUser, r)
	}
	if r := l.refusalOf(setSecret("other", "db", 1, full)); r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_LIMIT || !strings.Contains(r.Message, "secrets of the cell") {
		t.Errorf("one more of a cell that is full: %v", r)
	}
	// Another value in the place of one that is as large.
	l.do(setSecret("u0", "s0", 2, full))
	l.do(&borgpb.Op{Op: &borgpb.Op_DeleteSecret{DeleteSecret: &borgpb.DeleteSecret{User: "u0", Name: "s1"}}})
	l.do(setSecret("other", "db", 1, full))
	if err := l.c.Check(); err != nil {
		t.Error(err)
	}
	if n := len(slices.Collect(l.c.Secrets())); n != taken {
		t.Errorf("the cell has %d secrets, want %d", n, taken)
	}
}

// TestNoteLimits: a note is small, and can be shown as it is.
func TestNoteLimits(t *testing.T) {
	many := map[string]string{}
	for i := range maxNoteAnnotations + 1 {
		many[fmt.Sprint("k", i)] = "v"
	}
	for name, tt := range map[string]struct {
		text        string
		annotations map[string]string
		want        borgpb.RefusalKind
	}{
		"the longest":      {text: strings.Repeat("x", maxNoteBytes)},
		"too long":         {text: strings.Repeat("x", maxNoteBytes+1), want: borgpb.RefusalKind_REFUSAL_KIND_INVALID},
		"an escape":        {text: "a\x1b[2Jb", want: borgpb.RefusalKind_REFUSAL_KIND_INVALID},
		"two lines":        {text: "a\nb", want: borgpb.RefusalKind_REFUSAL_KIND_INVALID},
		"a C1 control":     {text: "a\u009bb", want: borgpb.RefusalKind_REFUSAL_KIND_INVALID},
		"words of people":  {text: "wärmt auf 🔥"},
		"too many":         {annotations: many, want: borgpb.RefusalKind_REFUSAL_KIND_LIMIT},
		"too large":        {annotations: map[string]string{"k": strings.Repeat("x", maxNoteAnnotationBytes)}, want: borgpb.RefusalKind_REFUSAL_KIND_LIMIT},
		"the largest":      {annotations: map[string]string{"k": strings.Repeat("x", maxNoteAnnotationBytes-1)}},
		"a key of nothing": {annotations: map[string]string{"": "x"}, want: borgpb.RefusalKind_REFUSAL_KIND_INVALID},
		"a zero byte":      {annotations: map[string]string{"k": "\x00"}, want: borgpb.RefusalKind_REFUSAL_KIND_INVALID},
	} {
		if r := checkNote(&borgpb.SetTaskNote{Text: tt.text, Annotations: tt.annotations}); r.GetKind() != tt.want {
			t.Errorf("%s: %v, want %v", name, r, tt.want)
		}
	}
}

// TestSecretsAreLoaded: what a checkpoint holds of secrets and notes comes back
// as it was, and odd records are refused.
func TestSecretsAreLoaded(t *testing.T) {
	l := raised(t, FormatSecrets)
	l.do(addMachine("m1", 1000, 1<<30))
	l.do(setSecret("u", "db", 1, 40))
	l.do(&borgpb.Op{Op: &borgpb.Op_UseCellKey{UseCellKey: &borgpb.UseCellKey{KeyId: "00000000000000bb"}}})
	spec := service(1, 100, 1, 1)
	spec.Task.Secrets, spec.Task.Resources.MemBytes = []string{"db"}, 0
	l.do(submitJob(t, "j", spec))
	j := l.c.Job(JobKey{"u", "j"})
	l.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: j.UID().String(), Machine: "m1"}}}}})
	l.do(&borgpb.Op{Op: &borgpb.Op_SetTaskNote{SetTaskNote: &borgpb.SetTaskNote{User: "u", Job: "j", Attempt: 1, Text: "well", Annotations: map[string]string{"a": "b"}}}})
	c, err := Load(l.c.Records())
	if err != nil {
		t.Fatal(err)
	}
	s := c.Secret("u", "db")
	text, annotations := c.Job(JobKey{"u", "j"}).Task(0).Current().Note()
	if s == nil || s.Version() != 1 || s.KeyID() != "00000000000000aa" || len(s.Sealed()) != 40 || s.ChangedWallNs() != l.c.Secret("u", "db").ChangedWallNs() ||
		c.CellKey() != "00000000000000bb" || text != "well" || annotations["a"] != "b" || c.Digest() != l.c.Digest() {
		t.Errorf("loaded are %v, key %s, note %q %v", s, c.CellKey(), text, annotations)
	}
	for what, change := range map[string]func(key, value []byte) ([]byte, []byte){
		"a secret of nobody":        func(key, value []byte) ([]byte, []byte) { return append(key[:1:1], "db"...), value },
		"a secret of version 0":     func(key, value []byte) ([]byte, []byte) { value[1] = 0; return key, value },
		"a secret that is cut off":  func(key, value []byte) ([]byte, []byte) { return key, value[:len(value)-1] },
		"a key with another letter": func(key, value []byte) ([]byte, []byte) { value[3] = 'x'; return key, value },
	} {
		odd := func(yield func(k, v []byte) bool) {
			for k, v := range l.c.Records() {
				k, v = bytes.Clone(k), bytes.Clone(v)
				if k[0] == kindSecret {
					k, v = change(k, v)
				}
				if !yield(k, v) {
					return
				}
			}
		}
		if _, err := Load(odd); err == nil {
			t.Errorf("%s was loaded", what)
		}
	}
}

// TestSecretInUse wants a secret, and the priority of an alloc set, to be held by the live jobs that
// name them, in their latest spec or in one that an update may go back to.
func TestSecretInUse(t *testing.T) {
	l := raised(t, BuildFormat)
	l.do(setSecret("u", "db", 1, sealBytes))
	l.do(submitSet(t, "place", setSpec(1, 200, 10)))
	plain, uses := service(2, 200, 1, 1), service(2, 200, 1, 1)
	uses.AllocSet, uses.Task.Secrets, uses.Task.Resources.MemBytes = "u/place", []string{"db"}, 0
	ops := []*borgpb.Op{
		asUser("u", updateSet(t, "place", setSpec(1, 100, 10))),
		asUser("u", &borgpb.Op{Op: &borgpb.Op_DeleteSecret{DeleteSecret: &borgpb.DeleteSecret{User: "u", Name: "db"}}}),
	}
	refused := func() {
		t.Helper()
		for _, op := range ops {
			if r := l.refusalOf(op); r == nil || !strings.Contains(r.Message, "u/web") {
				t.Errorf("%v: %v, want it refused for job u/web", op, r)
			}
		}
		l.fine()
	}
	l.do(submitJob(t, "web", uses))
	refused()
	// What the jobs of a set may have to be asked for is work.
	if got := l.c.Work(ops[0]); got < 2 {
		t.Errorf("the update of the set counts as %d", got)
	}
	l.do(updateJob(t, "web", plain))
	refused()
	l.do(killJob("web"))
	l.do(submitJob(t, "web", plain))
	for _, op := range ops {
		l.do(op)
	}
	l.fine()
}

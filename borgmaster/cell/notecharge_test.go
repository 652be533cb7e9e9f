package cell

import (
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// TestNotesAndSecretsAreCharged: what a task says of itself and the sealed value of a secret
// count in the bytes of their user, are refused beyond the budget, and go with the copy and
// with the secret.
func TestNotesAndSecretsAreCharged(t *testing.T) {
	l := latestQuotaLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: "root", Capability: string(Admin)}}})
	l.do(setQuota("u", production, 10_000, tib))
	l.do(submitJob(t, "web", service(2, 200, 1_000, 1<<20)))
	l.start("web", 0, "m0")
	l.start("web", 1, "m1")
	held := func() int64 { return l.c.StateUseOf("u")[measureBytes] }
	bare := held()
	note := func(index uint32, text string, annotations map[string]string) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetTaskNote{SetTaskNote: &borgpb.SetTaskNote{User: "u", Job: "web", Index: index, Attempt: 1, Text: text, Annotations: annotations}}}
	}
	l.do(note(0, strings.Repeat("x", 200), map[string]string{"k": strings.Repeat("y", 4000)}))
	if got := held() - bare; got < 4_200 {
		t.Errorf("a note of 4,200 bytes is charged %d", got)
	}
	l.do(note(1, "ready", nil))
	l.fine()
	if got, want := reload(t, l.c).StateUseOf("u"), l.c.StateUseOf("u"); got != want {
		t.Errorf("after a reload %v is held, want %v", got, want)
	}
	l.do(&borgpb.Op{Principal: &borgpb.Principal{User: "root"}, Op: &borgpb.Op_SetStateBudget{SetStateBudget: &borgpb.SetStateBudget{
		User: "u", Amounts: []*borgpb.StateAmount{{Measure: measureBytes, Amount: held()}}}}})
	l.over(note(1, strings.Repeat("x", 100), nil), "bytes=")
	secret := func(n int) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetSecret{SetSecret: &borgpb.SetSecret{User: "u", Name: "key", Version: 1, KeyId: "0123456789abcdef", Sealed: make([]byte, n)}}}
	}
	l.over(secret(1000), "bytes=")
	l.do(note(0, "", nil))
	before := held()
	l.do(secret(1000))
	if got := held() - before; got != 1000 {
		t.Errorf("a secret of 1,000 bytes sealed is charged %d", got)
	}
	l.fine()
	l.do(&borgpb.Op{Op: &borgpb.Op_DeleteSecret{DeleteSecret: &borgpb.DeleteSecret{User: "u", Name: "key"}}})
	l.do(killJob("web"))
	for i, m := range []string{"m0", "m1"} {
		l.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: m, Tasks: []*borgpb.TaskReport{{
			JobUid: l.c.Job(JobKey{"u", "web"}).uid.String(), Index: uint32(i), Attempt: 1, State: int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED)}}}}}}})
	}
	if got := held(); got != 0 {
		t.Errorf("%d bytes are charged when all has ended", got)
	}
	l.fine()
}

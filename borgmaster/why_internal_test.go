package borgmaster

import (
	"testing"

	"borg/borgmaster/admission"
)

// TestExplanationsAreCharged: what the scheduler works for a user's explanations counts as reading, up to
// mostExplainNs each.
func TestExplanationsAreCharged(t *testing.T) {
	now := int64(1e9)
	a := newAdmitter(admission.Config{Replica: 1}, func() int64 { return now })
	defer a.close()
	a.explained("alice", now-1e6)
	for n := 1; a.core.ReadsIn(now, "alice") == 0; n++ {
		if n > admission.MaxReadNs {
			t.Fatal("alice may have the scheduler explain for ever")
		}
		a.explained("alice", now-1e9)
	}
	if wait := a.core.ReadsIn(now, "alice"); wait > 10*mostExplainNs {
		t.Errorf("an explanation that waited for a second costs %d ns", wait)
	}
	if a.core.ReadsIn(now, "bob") != 0 {
		t.Error("bob pays for alice")
	}
}

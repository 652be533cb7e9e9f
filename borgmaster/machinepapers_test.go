package borgmaster

import (
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestMachinePapers: a replica tells of its machines' certificates once in a while, and
// the last word on a machine is shown until it is old.
func TestMachinePapers(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	end := now.Add(30 * time.Hour)
	seen := func() []seenCertificate { return []seenCertificate{{"m1", now, end}} }
	var teller, elected machinePapers
	tell := func(want int) {
		t.Helper()
		req := &borgrpc.ReportRequest{}
		teller.tell(now, seen, req)
		if len(req.Certificates) != want {
			t.Fatalf("a report tells of %d certificates, want %d", len(req.Certificates), want)
		}
		elected.hear(now, req.Certificates)
	}
	shown := func() int64 {
		m := &borgpb.Machine{Meta: &borgpb.Meta{Name: "m1"}, Status: &borgpb.MachineStatus{}}
		elected.fill(now, []*borgpb.Machine{m})
		return m.Status.CertificateUntilWallNs
	}
	tell(1)
	tell(0)
	if got := shown(); got != end.UnixNano() {
		t.Fatalf("the certificate counts until %d, want %d", got, end.UnixNano())
	}
	now, end = now.Add(papersEvery), end.Add(time.Hour)
	tell(1)
	if got := shown(); got != end.UnixNano() {
		t.Fatalf("after a renewal it counts until %d, want %d", got, end.UnixNano())
	}
	if now = now.Add(papersFresh + 1); shown() != 0 {
		t.Fatal("what was heard long ago is still shown")
	}
}

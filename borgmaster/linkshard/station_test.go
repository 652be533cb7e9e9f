package linkshard

import (
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgrpc"
)

// standingLog is a log of which only the state matters.
type standingLog struct{ state State }

func (l *standingLog) View(func(c *cell.Cell)) {}
func (l *standingLog) State() State            { return l.state }

// A replica that hears from no master holds back what it missed; when it hears from the
// next one, ten seconds later, that says nothing of the machine, which others may have
// polled since. What it reached is told all the same.
func TestMissesOfBeforeAreNotTold(t *testing.T) {
	now := int64(100e9)
	log := &standingLog{State{Replica: 2, Elected: 1, Term: 4}}
	s := NewStation(Config{Core: CoreConfig{Replica: 2}, Log: log, NowNs: func() int64 { return now }})
	s.TakeNotes(Notes{NewState: true})
	req := s.report()
	if req == nil {
		t.Fatal("no report to a master that is elected")
	}
	s.ReportTaken(&borgrpc.ReportResponse{Term: 4})

	s.outbox.contacts["m1"] = &borgrpc.Contact{Machine: "m1", Missed: 9, SilentNs: 10e9}
	s.outbox.contacts["m2"] = &borgrpc.Contact{Machine: "m2", Reached: true}
	now += 300e6
	if req = s.report(); req == nil || len(req.Contacts) != 2 {
		t.Fatalf("while it is in contact it reports %v, want both contacts", req)
	}
	s.ReportFailed(req)

	log.state.Elected, log.state.Term = 3, 5
	s.TakeNotes(Notes{NewState: true})
	now += 10e9
	if req = s.report(); req == nil || len(req.Contacts) != 1 || !req.Contacts[0].Reached {
		t.Fatalf("after ten seconds without a master it reports %v, want that it reached m2", req)
	}
}

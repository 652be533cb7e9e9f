package borgmaster

import (
	"bytes"
	"fmt"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// cellLog is a log of which only the cell is looked at.
type cellLog struct {
	Log
	cell *cell.Cell
}

func (l cellLog) View(f func(*cell.Cell)) { f(l.cell) }

// sentStream takes in what a follower is sent.
type sentStream struct {
	borgrpc.SchedulingService_FollowServer
	sent []*borgrpc.FollowResponse
}

func (s *sentStream) Send(resp *borgrpc.FollowResponse) error {
	s.sent = append(s.sent, resp)
	return nil
}

// placedCell has jobs of which all tasks have a place, each on the machine of its index.
func placedCell(tb testing.TB, machines, jobs int) *cell.Cell {
	tb.Helper()
	c := cellOf(tb, machines, jobs, uint32(machines))
	for i := range jobs {
		assign := &borgpb.Assign{}
		for k := range machines {
			assign.Assignments = append(assign.Assignments, &borgpb.Assignment{
				Uid: c.Job(cell.JobKey{User: "u", Name: fmt.Sprint("j", i)}).UID().String(), Index: uint32(k), Machine: fmt.Sprint("m", k), Version: 1,
			})
		}
		applyTo(tb, c, &borgpb.Op{Op: &borgpb.Op_Assign{Assign: assign}})
	}
	return c
}

// TestFollowersGetAllRecords, in pieces of bounded size and in order.
func TestFollowersGetAllRecords(t *testing.T) {
	log, s := cellLog{cell: placedCell(t, 1000, 15)}, &sentStream{}
	index, err := sendRecords(log, s)
	if err != nil || index != log.cell.Index() {
		t.Fatalf("records of index %d: %v, want those of %d", index, err, log.cell.Index())
	}
	if last := s.sent[len(s.sent)-1]; !last.RecordsEnd || last.Index != index || last.CellId != log.cell.ID() || len(last.Records) != 0 {
		t.Errorf("the last message is %v", last)
	}
	var records []*borgrpc.Record
	for _, resp := range s.sent {
		size := 0
		for _, r := range resp.Records {
			size += len(r.Key) + len(r.Value)
		}
		if size > followChunkBytes {
			t.Errorf("%d bytes of records in one message", size)
		}
		records = append(records, resp.Records...)
	}
	if len(s.sent) < 3 {
		t.Errorf("all in %d messages", len(s.sent))
	}
	n := 0
	for key, value := range log.cell.Records() {
		if n >= len(records) || !bytes.Equal(records[n].Key, key) || !bytes.Equal(records[n].Value, value) {
			t.Fatalf("record %d of %d is not that of %q", n, len(records), key)
		}
		n++
	}
	if n != len(records) {
		t.Errorf("%d records were sent, want %d", len(records), n)
	}
}

// BenchmarkTakeRecords is for how long nothing is applied while a follower takes in a
// full cell.
func BenchmarkTakeRecords(b *testing.B) {
	log := cellLog{cell: placedCell(b, 10_000, 15)}
	b.ReportAllocs()
	for b.Loop() {
		log.View(func(c *cell.Cell) { takeRecords(c) })
	}
}

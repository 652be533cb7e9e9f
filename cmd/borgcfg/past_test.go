package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"borg/borgmaster"
	"borg/proto/borgrpc"
)

// pretendPast is what master 1 and 2 of a test have kept: the text of the number of
// the index instead of a checkpoint. The others keep nothing.
type pretendPast struct{ replica uint64 }

// The day on which everything in it was.
const pastDayNs int64 = 1_800_000_000e9

func (p pretendPast) Kept() (*borgrpc.ListCheckpointsResponse, error) {
	resp := &borgrpc.ListCheckpointsResponse{Replica: p.replica}
	switch p.replica {
	case 1:
		resp.Checkpoints = []*borgrpc.KeptCheckpoint{{Epoch: 1, Index: 100, WallTimeNs: pastDayNs, Bytes: 3000}, {Epoch: 1, Index: 300, WallTimeNs: pastDayNs + 3600e9, Bytes: 4096}}
		resp.Logs = []*borgrpc.KeptLog{{Epoch: 1, FirstIndex: 2, LastIndex: 250, Bytes: 700}, {Epoch: 1, FirstIndex: 290, LastIndex: 310, Bytes: 80, Gap: "it could not be written: disk full"}}
		resp.Failing = "the disk is too full"
	case 2:
		resp.Checkpoints = []*borgrpc.KeptCheckpoint{{Epoch: 1, Index: 200, WallTimeNs: pastDayNs + 1800e9, Bytes: 4000}}
		resp.Logs = []*borgrpc.KeptLog{{Epoch: 1, FirstIndex: 2, LastIndex: 310, Bytes: 900}}
	default:
		resp.Off = true
	}
	return resp, nil
}

func (p pretendPast) OpenKept(index uint64, wallNs int64) (io.ReadCloser, uint64, int64, error) {
	kept, _ := p.Kept()
	for i := len(kept.Checkpoints) - 1; i >= 0; i-- {
		if k := kept.Checkpoints[i]; (index == 0 || k.Index <= index) && (wallNs == 0 || k.WallTimeNs <= wallNs) {
			return io.NopCloser(strings.NewReader(fmt.Sprintln(k.Index))), k.Index, int64(k.Bytes), nil
		}
	}
	return nil, 0, 0, fmt.Errorf("%w: nothing", borgmaster.ErrNotKept)
}

func (p pretendPast) Checkpoint(_ context.Context, w io.Writer) (uint64, error) {
	_, err := fmt.Fprintln(w, "now")
	return 310, err
}

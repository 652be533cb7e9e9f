package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestKilledMasterLosesNoUsage kills a master that polls machines in the middle of a window
// and removes its directory. What its polls had told is told by the others.
func TestKilledMasterLosesNoUsage(t *testing.T) {
	if size(0, 1) == 0 {
		t.Skip("waits until a master is taken for silent; set BORG_CHAOS=full")
	}
	// Each master has some of the machines, and each machine a task.
	c := chaosCell(t, 3, 4)
	spec := sleepers(c.Machines)
	spec.MaxPerMachine = 1
	c.run(t, "web", spec)
	elected, err := c.electedNow(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	var lost int
	err = until(shortly(t), "the others hold what a follower was told of tasks", func(ctx context.Context) error {
		held := 0.0
		for i := 1; i <= c.Masters; i++ {
			n, err := c.countedBy(ctx, i, "borg_borgmaster_usage_drafts", nil)
			if err != nil {
				return err
			}
			held += n
			machines, err := c.countedBy(ctx, i, "borg_borgmaster_shard_machines", nil)
			if err != nil {
				return err
			}
			if i != elected && machines > 0 {
				lost = i
			}
		}
		if int(held) < c.Machines || lost == 0 {
			return fmt.Errorf("%g drafts are held of %d tasks, and follower %d polls", held, c.Machines, lost)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(c.masterName(lost)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(c.masterDir(lost)); err != nil {
		t.Fatal(err)
	}
	err = until(shortly(t), "the others tell what the lost one's polls told", func(ctx context.Context) error {
		rows, err := c.used(ctx, "web")
		for _, u := range rows {
			if u.Replica == uint64(lost) {
				return err
			}
		}
		return fmt.Errorf("of %d rows none is of replica %d: %w", len(rows), lost, err)
	})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := c.used(shortly(t), "web")
	if err != nil {
		t.Fatal(err)
	}
	ends := map[string]int64{}
	for _, u := range rows {
		of := fmt.Sprint(u.JobUid, " ", u.Index, " ", u.Attempt)
		if u.Samples == 0 || u.MemBytesMean == 0 || u.FromNs <= ends[of] {
			t.Errorf("what was used is told as %v, after what ended at %d", u, ends[of])
		}
		ends[of] = u.ToNs
	}
	if out, want := c.must(t, "borgcfg", "--cell", c.cellFile(), "events", "--usage", "--job", "web", "--since", "1h"), fmt.Sprintf(" polls, replica %d)", lost); !strings.Contains(out, want) {
		t.Errorf("borgcfg events says\n%swant one with %q", out, want)
	}
}

// used is what is told of the tasks of a job, by time.
func (c *Cell) used(ctx context.Context, job string) (rows []*borgpb.UsageRow, err error) {
	err = c.client.History(ctx, &borgrpc.HistoryRequest{Job: c.user + "/" + job, UsageOnly: true}, func(resp *borgrpc.HistoryResponse) error {
		rows = append(rows, resp.Usage...)
		return nil
	})
	return rows, err
}

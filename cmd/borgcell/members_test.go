package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"borg/borgmaster/client"
	"borg/borgmaster/replica"
	"borg/checkpoint"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// madeReplica makes the directory of a replica that others reach at addr.
func (l layout) madeReplica(t *testing.T, i int, addr string) {
	t.Helper()
	id := &borgpb.ReplicaIdentity{CellName: l.Name, CellId: "c1", Epoch: 1, Replica: uint64(i), Members: []*borgpb.Member{{Id: uint64(i), Addr: addr}}}
	if err := os.MkdirAll(l.masterDir(i), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l.masterDir(i), authorityName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := replica.Init(checkpoint.Config{Dir: l.masterDir(i)}, id); err != nil {
		t.Fatal(err)
	}
}

func TestMastersOfADirectory(t *testing.T) {
	l := goodLayout()
	l.dir = t.TempDir()
	says := func(when string, want ...int) {
		t.Helper()
		if got := l.masterNumbers(); !slices.Equal(got, want) {
			t.Errorf("%s: masters %v, want %v", when, got, want)
		}
	}
	says("of a new cell", 1, 2, 3, 4, 5)
	for i := 1; i <= 5; i++ {
		l.madeReplica(t, i, l.masterAddr(i))
	}
	l.Made = true
	says("when it was made", 1, 2, 3, 4, 5)
	for _, i := range []int{1, 4} {
		if err := os.Remove(filepath.Join(l.masterDir(i), authorityName)); err != nil {
			t.Fatal(err)
		}
	}
	says("when two were taken out", 2, 3, 5)
	if got, want := l.authorityFile(), filepath.Join(l.masterDir(2), authorityName); got != want {
		t.Errorf("the authority is in %s, want %s", got, want)
	}
	if got, want := l.eachMaster(strconv.Itoa), "2, 3, 5"; got != want {
		t.Errorf("they are named %q, want %q", got, want)
	}
	l.madeReplica(t, 7, l.masterAddr(7))
	l.madeReplica(t, 8, "elsewhere:7008")
	says("when one joined here and one elsewhere", 2, 3, 5, 7)
	if err := os.RemoveAll(l.masterDir(3)); err != nil {
		t.Fatal(err)
	}
	says("when one lost its disk", 2, 5, 7)
}

// TestCellOfOtherMastersStartsAgain: masters were taken out, the first among them, and
// one has joined; the next run has those that the cell has.
func TestCellOfOtherMastersStartsAgain(t *testing.T) {
	alongside(t)
	c := newChaosCell(t, 3, 1)
	if err := c.StartMasters(t.Context()); err != nil {
		t.Fatal(err)
	}
	following, stop := context.WithCancel(t.Context())
	var follower sync.WaitGroup
	follower.Go(func() { c.followMasters(following) })
	defer func() { stop(); follower.Wait() }()
	c.joins(t, 4)
	c.masterOK(t, "grow", c.masterAddr(4))
	c.masterOK(t, "shrink", "1", "3", "--force")
	waitFor(t, "the cell file names those that are left", func() string {
		file, err := client.ReadCellFile(c.cellFile())
		if err != nil || !slices.Equal(file.Masters, []string{c.masterAddr(2), c.masterAddr(4)}) {
			return fmt.Sprint(file, err)
		}
		return ""
	})
	stop()
	follower.Wait()
	waitFor(t, "those that were taken out end and stay so", func() string {
		for _, i := range []int{1, 3} {
			if p := c.sup.get(c.masterName(i)); p.wanted() || p.running() != nil {
				return p.spec.Name + " runs"
			}
		}
		return ""
	})
	l := c.layout
	if err := c.Stop(shortly(t)); err != nil {
		t.Fatal(err)
	}
	again, err := OpenCell(t.Context(), l, false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	*c = *again
	c.startAll(t)
	resp, err := c.client.ListMembers(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	var ids []uint64
	for _, m := range resp.Members {
		ids = append(ids, m.Member.Id)
	}
	if slices.Sort(ids); !slices.Equal(ids, []uint64{2, 4}) {
		t.Errorf("the cell has masters %v, want 2 and 4", ids)
	}
}

// TestRevokedUserEndsTheCell: the certificate of who runs the cell is revoked, and the
// cell ends in order all the same.
func TestRevokedUserEndsTheCell(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 1, 1)
	c.hasLatestFormat(t)
	if _, err := c.submit(shortly(t), "resting", sleepers(1)); err != nil {
		t.Fatal(err)
	}
	op := &borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: c.user, CertificatesWallNs: time.Now().UnixNano()}}}
	// The answer may be that the user is revoked already.
	_, mutateErr := c.client.Mutate(shortly(t), op)
	waitFor(t, "who runs the cell is refused", func() string {
		if _, err := c.client.ListJobs(shortly(t), &borgrpc.ListJobsRequest{}); err == nil {
			return fmt.Sprintf("not yet; the revocation returned %v", mutateErr)
		}
		return ""
	})
	if err := c.DownAll(shortly(t)); err != nil {
		t.Error(err)
	}
	if n, err := c.copies(context.Background()); n != 0 || err != nil {
		t.Errorf("%d copies are left, %v", n, err)
	}
}

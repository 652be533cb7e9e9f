package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// How long half of the machines, and all of them, are away.
	halfAway, allAway = 3 * time.Minute, 5 * time.Minute
	// After an outage the cell is given so long to come to rest.
	outageRest = 15 * time.Second
	// How often a follower and an elected master are lost, and how long the cell has in
	// between: until masters have connections to the machines for which they are next.
	coverageTurns, coverageRest = 2, time.Minute
)

// BenchmarkOutage is a full cell of five masters and ten thousand pretended machines
// (BORG_BENCH_MACHINES: as many) that loses a follower, then the way from a follower to
// the machines, then half of the machines for three minutes, then all of them for five.
// What was moved and stopped is counted by the machines themselves, and read from the
// cell task by task. BORG_BENCH_OUTAGE names those parts that are measured, of kill, cut,
// half and all.
func BenchmarkOutage(b *testing.B) {
	parts := cmp.Or(os.Getenv("BORG_BENCH_OUTAGE"), "kill,cut,half,all")
	for range b.N {
		m := newMasterBench(b)
		m.start()
		m.fillAll()
		time.Sleep(coverageRest)
		for _, part := range []struct {
			name string
			lose func()
		}{{"kill", m.killFollower}, {"cut", m.cutFollower}, {"half", m.halfVanish}, {"all", m.allVanish}} {
			if slices.Contains(strings.Split(parts, ","), part.name) {
				part.lose()
			}
		}
	}
}

// BenchmarkCoverage is the same cell that loses followers and elected masters, by turns:
// how long machines are polled by nobody, and until all were polled by who follows the new
// master.
func BenchmarkCoverage(b *testing.B) {
	for range b.N {
		m := newMasterBench(b)
		m.start()
		m.fillAll()
		time.Sleep(coverageRest)
		for range coverageTurns {
			m.loseFollower()
			time.Sleep(coverageRest)
			m.loseElected()
			time.Sleep(coverageRest)
		}
	}
}

// lives is where each task of the cell is, and in which attempt.
type lives map[string]place

type place struct {
	machine string
	attempt uint64
}

func (m *masterBench) lives() lives {
	m.Helper()
	all := lives{}
	m.must(func(ctx context.Context) error {
		resp, err := m.cell.client.ListAllTasks(ctx, &borgrpc.ListTasksRequest{}, 0)
		for _, t := range resp.GetTasks() {
			if s := t.GetStatus(); s.GetState() == borgpb.State_STATE_RUNNING {
				all[fmt.Sprintf("%s/%d", t.GetMeta().GetUid(), t.GetIndex())] = place{s.GetMachine(), s.GetAttempt()}
			}
		}
		return err
	})
	return all
}

// moved counts tasks that are not where they were, in the attempt that they had.
func (was lives) moved(now lives) (n int) {
	for task, at := range was {
		if now[task] != at {
			n++
		}
	}
	return n
}

// placedAnew counts tasks that run in another attempt or elsewhere now, and those that do not
// run.
func (was lives) placedAnew(now lives) (placed, wait int) {
	for task, at := range was {
		switch is, runs := now[task]; {
		case !runs:
			wait++
		case is != at:
			placed++
		}
	}
	return placed, wait
}

// undisturbed measures a part during which nothing may be moved or stopped.
func (m *masterBench) undisturbed(part string, do func()) {
	m.Helper()
	was, before := m.lives(), m.status()
	do()
	now := m.status()
	m.figure(float64(was.moved(m.lives())), part, "moved_tasks")
	m.figure(float64(now.Stopped-before.Stopped), part, "stopped_tasks")
	m.figure(float64(now.Begun-before.Begun), part, "begun_tasks")
}

func (m *masterBench) killFollower() {
	m.undisturbed("killfollower", func() {
		dead := m.elected()%m.cell.Masters + 1
		m.covered(dead, m.kill(dead), "killfollower", "coverage_seconds")
		m.bring(dead)
		time.Sleep(outageRest)
	})
}

func (m *masterBench) cutFollower() {
	m.undisturbed("cutfollower", func() {
		deaf := m.elected()%m.cell.Masters + 1
		since := time.Now()
		m.must(func(ctx context.Context) error { return m.cell.FakeCut(ctx, deaf) })
		m.covered(deaf, since, "cutfollower", "coverage_seconds")
		time.Sleep(outageRest)
		m.must(func(ctx context.Context) error { return m.cell.FakeCut(ctx, 0) })
		// It has no share for a minute or more: nobody is in a hurry to believe it again.
		time.Sleep(outageRest)
	})
}

// halfVanish has every second machine vanish for three minutes: those that are given up
// for down are so many a minute, so are the tasks that are placed elsewhere for it. Of the
// others only those move that give way to such.
func (m *masterBench) halfVanish() {
	was := m.lives()
	m.must(func(ctx context.Context) error { return m.cell.FakeVanish(ctx, 1, 2) })
	since := time.Now()
	there := m.status()
	vanished := map[string]bool{}
	for k := 2; k <= m.cell.Machines; k += 2 {
		vanished[m.cell.machineName(k)] = true
	}
	away, stay := lives{}, lives{}
	for task, at := range was {
		if vanished[at.machine] {
			away[task] = at
		} else {
			stay[task] = at
		}
	}
	if len(away) != there.RunningAway {
		m.Fatalf("%d tasks run on machines that vanished, and the cell had %d there", there.RunningAway, len(away))
	}
	before, placedBefore := uint32(0), 0
	for minute := 1; time.Duration(minute)*time.Minute <= halfAway; minute++ {
		time.Sleep(time.Until(since.Add(time.Duration(minute) * time.Minute)))
		down := m.state().GetMachinesDown()
		if time.Duration(minute+1)*time.Minute > halfAway {
			// First: while machines are away, those that take the count's time are given up.
			m.must(func(ctx context.Context) error { return m.cell.FakeVanish(ctx, 0, 0) })
		}
		now := m.lives()
		placed, wait := away.placedAnew(now)
		m.Logf("%v: %d machines vanished with %d of %d tasks; %d were given up so far, %d tasks run elsewhere since, %d wait for a place",
			time.Since(since).Round(time.Second), there.Away, there.RunningAway, len(was), down, placed, wait)
		m.figure(100*float64(down-before)/float64(m.cell.Machines), "half", fmt.Sprintf("given_up_in_minute_%d_percent", minute))
		m.figure(100*float64(placed-placedBefore)/float64(len(was)), "half", fmt.Sprintf("placed_anew_in_minute_%d_percent", minute))
		m.figure(float64(wait), "half", fmt.Sprintf("waiting_after_minute_%d_tasks", minute))
		before, placedBefore = down, placed
	}
	m.whole("half", len(was), time.Now())
	now := m.lives()
	m.figure(100*(1-float64(away.moved(now))/float64(len(away))), "half", "never_moved_percent")
	m.figure(float64(stay.moved(now)), "half", "others_moved_tasks")
}

// allVanish has all machines vanish: nothing is given up.
func (m *masterBench) allVanish() {
	m.undisturbed("all", func() {
		tasks := m.status().Running
		m.must(func(ctx context.Context) error { return m.cell.FakeVanish(ctx, 1, 1) })
		for since := time.Now(); time.Since(since) < allAway; {
			time.Sleep(time.Minute)
			s := m.state()
			m.Logf("%v: no machine is heard; %d were given up, %d tasks run as the cell knows", time.Since(since).Round(time.Second), s.GetMachinesDown(), s.GetTasksRunning())
		}
		m.must(func(ctx context.Context) error { return m.cell.FakeVanish(ctx, 0, 0) })
		m.whole("all", tasks, time.Now())
		// As the cell knows, all of them run all the time. Until the last one is polled again
		// there is time to take it for lost.
		time.Sleep(time.Minute)
	})
}

// whole waits until all machines are up again and each task runs once.
func (m *masterBench) whole(part string, tasks int, since time.Time) {
	m.Helper()
	m.every("all machines are up, and each task runs once", func(ctx context.Context) error {
		state, err := m.cell.client.GetCell(ctx)
		s, err2 := m.cell.FakeStatus(ctx)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if int(state.GetMachinesUp()) < m.cell.Machines || s.Running != tasks || int(state.GetTasksRunning()) != tasks {
			return fmt.Errorf("%d of %d machines are up; %d tasks run as the cell knows, %d processes on the machines, and %d are wanted", state.GetMachinesUp(), m.cell.Machines, state.GetTasksRunning(), s.Running, tasks)
		}
		return nil
	})
	m.figure(time.Since(since).Seconds(), part, "whole_again_seconds")
}

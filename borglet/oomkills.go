package borglet

import (
	"fmt"
	"math/bits"
	"time"
)

// killsEvery is how often it is looked which processes of tasks the kernel has killed.
const killsEvery = 5 * time.Second

// Kills is what the kernel killed of a run, which goes on, for want of memory.
type Kills struct {
	Count int64
	// The first process, and the memory that it held; empty and zero when not known.
	Process string
	Bytes   int64
}

// KernelKilled says so of one run.
type KernelKilled struct {
	ID    ID
	Run   uint32
	Kills Kills
}

func (KernelKilled) event() {}

// lookAtKills looks what the kernel killed, if that is due.
func (a *Agent) lookAtKills(due *time.Time, ids []ID) {
	v, now := a.view.Load(), time.Now()
	if a.cfg.Kills == nil || v == nil || now.Before(*due) {
		return
	}
	*due = now.Add(killsEvery)
	for id, kills := range a.cfg.Kills(ids) {
		if run, runs := v.runs[id]; runs {
			select {
			case a.results <- KernelKilled{ID: id, Run: run, Kills: kills}:
			case <-a.done:
				return
			}
		}
	}
}

// kernelKilled takes in what was killed of a run that goes on. The number is told at powers
// of two: a task whose processes are killed again and again is told of no more often.
func (c *Core) kernelKilled(ev KernelKilled) {
	t := c.copies[ev.ID]
	if t == nil || t.Run != ev.Run || t.phase != running || ev.Kills.Count <= 0 {
		return
	}
	n := uint32(1) << min(bits.Len64(uint64(ev.Kills.Count))-1, 31)
	if n == t.oomKills {
		return
	}
	t.oomKills = n
	most := "one process"
	if n > 1 {
		most = fmt.Sprintf("%d processes or more", n)
	}
	t.oomText = fmt.Sprintf("the kernel has killed %s of it for want of memory", most)
	if ev.Kills.Process != "" {
		t.oomText += fmt.Sprintf(", first %s, which held %s", ev.Kills.Process, mib(ev.Kills.Bytes))
	}
}

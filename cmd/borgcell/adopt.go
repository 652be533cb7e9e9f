package main

import (
	"context"
	"fmt"
	"time"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// held is what a borglet says of itself: which start of it this is, and the
// processes of the copies that run under it, by "<job uid>.<index>.<attempt>".
type held struct {
	incarnation string
	pids        map[string]int64
}

// Held asks the borglet of machine k what it holds, as the elected master
// would: with its fence, and with no orders. Absence from a poll stops nothing.
func (c *Cell) Held(ctx context.Context, k int) (held, error) {
	elected, err := c.Elected(ctx)
	if err != nil {
		return held{}, err
	}
	state, err := c.Ask(ctx, elected)
	if err != nil {
		return held{}, err
	}
	master, err := c.asMaster(elected)
	if err != nil {
		return held{}, err
	}
	conn, err := door.Dial(c.borgletAddr(k), master, identity.Name{Cell: c.Name, Role: identity.Borglet, ID: c.machineName(k)})
	if err != nil {
		return held{}, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	resp, err := borgrpc.NewBorgletServiceClient(conn).Poll(ctx, &borgrpc.PollRequest{
		Fence:   &borgrpc.Fence{CellId: state.CellId, Epoch: state.Epoch, Term: state.Term, Index: state.AppliedIndex},
		Machine: c.machineName(k), Replica: uint64(elected),
	})
	if err != nil {
		return held{}, err
	}
	if resp.Fenced {
		return held{}, fmt.Errorf("borglet %s has heard of a later entry than %d meanwhile", c.machineName(k), state.AppliedIndex)
	}
	h := held{incarnation: resp.Incarnation, pids: make(map[string]int64)}
	for _, t := range resp.Tasks {
		if t.State == int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING) {
			h.pids[fmt.Sprintf("%s.%d.%d", t.JobUid, t.Index, t.Attempt)] = t.Pid
		}
	}
	return h, nil
}

// Adopted waits until a later start of a borglet holds the copies that the one
// before held, as the same processes, but for those that have gone in between.
// It returns how long after a moment that was.
func (c *Cell) Adopted(ctx context.Context, k int, before held, gone int, since time.Time) (time.Duration, error) {
	err := until(ctx, "another borglet of "+c.machineName(k)+" holds the same processes", func(ctx context.Context) error {
		now, err := c.Held(ctx, k)
		if err != nil {
			return err
		}
		if now.incarnation == before.incarnation {
			return fmt.Errorf("the borglet %s is still there", now.incarnation)
		}
		if want := len(before.pids) - gone; len(now.pids) < want {
			return fmt.Errorf("it holds %d running copies of %d", len(now.pids), want)
		}
		for name, pid := range now.pids {
			if was := before.pids[name]; was != pid {
				return &finalError{fmt.Errorf("copy %s was process %d and is process %d", name, was, pid)}
			}
		}
		return nil
	})
	return time.Since(since), err
}

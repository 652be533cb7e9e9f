package client

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// maxReplicas bounds of how many replicas a client knows.
	maxReplicas = 64
	// A client that had to ask another replica asks who the members are, and not again
	// before so long.
	lookAroundPause = 10 * time.Second
)

// connect returns a replica at an address; nothing is dialled yet.
func (c *Client) connect(addr string) (*replica, error) {
	// The library's own pause between dials grows to two minutes; a cell that
	// comes back must be found at once.
	dial := grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
		MinConnectTimeout: 2 * time.Second,
	})
	conn, err := door.Dial(addr, c.config.Identity, door.AnyMaster(c.config.Identity), dial)
	if err != nil {
		return nil, err
	}
	return &replica{addr: addr, conn: conn, master: borgrpc.NewMasterServiceClient(conn)}, nil
}

// all returns the replicas: those of Config.Masters, and behind them those of which a master
// has told since. Later ones are added at the end of another slice.
func (c *Client) all() []*replica {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.replicas
}

// named returns the replicas of Config.Masters.
func (c *Client) named() []*replica { return c.all()[:len(c.config.Masters)] }

// meet takes in where masters are, as a master says: those that joined after the cell was
// named are asked as well.
func (c *Client) meet(members []*borgpb.Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.meetLocked(members)
}

// meetLocked is meet for who holds mu.
func (c *Client) meetLocked(members []*borgpb.Member) {
	for _, m := range members {
		known := slices.ContainsFunc(c.replicas, func(r *replica) bool { return r.addr == m.GetAddr() })
		if known || m.GetAddr() == "" || len(c.replicas) >= maxReplicas || c.life.Err() != nil {
			continue
		}
		r, err := c.connect(m.GetAddr())
		if err != nil {
			c.config.Log.Debug("a master is at no address", "master", m.GetId(), "addr", m.GetAddr(), "err", err)
			continue
		}
		c.replicas = append(slices.Clip(c.replicas), r)
	}
}

// lookAround asks a replica who the members are, beside the calls: another one gave no answer
// and may have left. The goroutine ends with the answer, or with the client.
func (c *Client) lookAround(r *replica) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil || !c.looked.IsZero() && time.Since(c.looked) < lookAroundPause {
		return
	}
	c.looked = time.Now()
	c.looking.Go(func() {
		ctx, cancel := context.WithTimeout(c.life, tryTimeout)
		defer cancel()
		if resp, err := r.master.GetCell(ctx, &borgrpc.GetCellRequest{}); err == nil {
			c.meet(resp.Members)
		}
	})
}

// Silent reports whether a replica has given no answer where another one did.
func (c *Client) Silent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.looked.IsZero()
}

// Moved tells where the cell's masters are, and which addresses of Config.Masters are silent
// and none of theirs any more. It tells of none when masters answer at other addresses than
// the cell has for them: then nothing can be said of the silent ones.
func (c *Client) Moved(ctx context.Context) (are, gone []string) {
	var answer []string
	for _, v := range c.Survey(ctx) {
		if v.Err != nil {
			gone = append(gone, v.Addr)
			continue
		}
		answer, are = append(answer, v.Addr), nil
		for _, m := range v.Cell.Members {
			are = append(are, m.Addr)
		}
	}
	is := func(addr string) bool { return slices.Contains(are, addr) }
	if len(are) == 0 || slices.ContainsFunc(answer, func(addr string) bool { return !is(addr) }) {
		return are, nil
	}
	return are, slices.DeleteFunc(gone, is)
}

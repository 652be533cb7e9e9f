// Package client is the Go client of a cell's masters: it finds the cell,
// tries its replicas until one answers, and gives back typed errors.
//
// Every replica serves every call, so a client never needs to know who is
// elected. It is told with each answer to a mutation, and asks that one first the next
// time, which saves a hop, over a stream that is kept while one mutation follows another.
// A mutation keeps its request id over all tries; the cell answers a
// repeated id as it did the first time, so trying again never does a thing
// twice. A Client may be used by many goroutines.
package client

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	defaultTimeout = 30 * time.Second
	// One replica may take so long before it is given up. A replica that is
	// stopped or cut off neither answers nor refuses.
	tryTimeout = 5 * time.Second
	// A mutation is short, and may be asked of several replicas. One that says
	// nothing gets so long in the first round, and twice as long in each that
	// follows: while the elected master is replaced nobody waits for a dead one.
	mutateTryTimeout = time.Second
	// A replica that is silent for so long is not waited for alone: the next one
	// is asked as well, and the first answer counts.
	slowAfter = 500 * time.Millisecond
	// So many replicas are asked the same at once.
	maxTries = 2
	// Pause after a whole round of replicas without an answer, doubled with
	// each round.
	minPause = 25 * time.Millisecond
	maxPause = time.Second
	// retriesAfter is how long no master has served a call when Config.Retries is called.
	retriesAfter = time.Second
)

// Config says which cell and who asks.
type Config struct {
	// Addresses of the replicas, host:port. At least one.
	Masters []string
	// Id of the cell; not empty: masters of another cell are refused before
	// the first mutation.
	CellID string
	// Who asks. Required.
	Identity *identity.Source
	// Bound on each call with all its tries; zero: 30 s. A context that ends
	// earlier wins.
	Timeout time.Duration
	// Hears of each failed try; nil: nobody.
	Log *slog.Logger
	// Waits hears that the masters have asked to come back later, why, and how long that
	// is waited for; nil: nobody.
	Waits func(what, why string, wait time.Duration)
	// Retries hears, once a call, that no master has served it for a second, what each said,
	// and for how long it is tried yet; nil: nobody.
	Retries func(what string, said map[string]error, left time.Duration)
}

// Validate checks the config.
func (c *Config) Validate() error {
	if len(c.Masters) == 0 {
		return errors.New("no addresses of masters")
	}
	if c.Identity == nil {
		return errors.New("no certificate to show the masters")
	}
	if c.Timeout < 0 {
		return fmt.Errorf("timeout %v is negative", c.Timeout)
	}
	return nil
}

// Client talks to one cell.
type Client struct {
	config Config
	// Ends with Close, and looking with it.
	life    context.Context
	end     context.CancelFunc
	looking sync.WaitGroup

	mu sync.Mutex // guards what follows
	// Those of config.Masters, then those of which a master has told. Never changed in place.
	replicas []*replica
	// When a master was last asked who the members are because another gave no answer.
	looked time.Time
	// Index of the replica that answered last.
	current int
	// Index of the one that is elected, as the last answer to a mutation said; -1: nobody
	// knows.
	elected int

	// The cell's id was compared with Config.CellID; checking is held by who does that.
	checked  atomic.Bool
	checking chan struct{}
}

type replica struct {
	addr   string
	conn   *grpc.ClientConn
	master borgrpc.MasterServiceClient
	// Its number, as it said itself; 0: it did not. Guarded by Client.mu.
	number    uint64
	mutations mutations
}

// New returns a client. Nothing is dialled before the first call.
func New(config Config) (*Client, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if config.Timeout == 0 {
		config.Timeout = defaultTimeout
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	c := &Client{config: config, elected: -1, checking: make(chan struct{}, 1)}
	c.life, c.end = context.WithCancel(context.Background())
	for _, addr := range config.Masters {
		r, err := c.connect(addr)
		if err != nil {
			_ = c.Close()
			return nil, err
		}
		c.replicas = append(c.replicas, r)
	}
	// Spread the users over the replicas.
	c.current = rand.IntN(len(c.replicas))
	return c, nil
}

// Close ends all connections.
func (c *Client) Close() error {
	c.mu.Lock()
	// From here on nothing is added and nothing looked for.
	c.end()
	c.mu.Unlock()
	c.looking.Wait()
	var errs []error
	for _, r := range c.all() {
		r.mutations.close()
		errs = append(errs, r.conn.Close())
	}
	return errors.Join(errs...)
}

// Timeout is the bound on each call.
func (c *Client) Timeout() time.Duration { return c.config.Timeout }

// again tells whether another replica, or the same one a little later, may do
// better. Deadlines of the single try count as no answer; the caller's do not.
func again(ctx context.Context, err error) bool {
	if door.Distrusted(err) {
		return false
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.ResourceExhausted:
		return true
	case codes.DeadlineExceeded, codes.Canceled:
		return true
	case codes.Unknown:
		return errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil
	default:
		return false
	}
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// Mutate proposes op and returns its result. A refusal is a *RefusedError. The
// request id, and the time that belongs to it, are filled in when absent; they
// stay the same over all tries.
func (c *Client) Mutate(ctx context.Context, op *borgpb.Op) (*borgpb.Result, error) {
	if op.RequestId == "" {
		op.RequestId, op.RequestWallNs = NewRequestID(time.Now())
	}
	if err := c.checkCell(ctx); err != nil {
		return nil, err
	}
	resp, err := tryFrom(ctx, c, c.forMutation(), "change the cell", mutateTryTimeout, func(ctx context.Context, r *replica) (*borgrpc.MutateResponse, error) {
		resp, err := r.mutate(ctx, &borgrpc.MutateRequest{Op: op})
		c.learn(r, resp)
		return resp, err
	})
	if err != nil {
		return nil, err
	}
	return resp.GetResult(), refused(resp.GetResult())
}

// forMutation is the replica that a mutation is asked of first.
func (c *Client) forMutation() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.elected >= 0 {
		return c.elected
	}
	return c.current
}

// learn takes in who is elected, as r says. The one that is meant may be known here by
// another address; then it is found once it has said its number.
func (c *Client) learn(r *replica, said *borgrpc.MutateResponse) {
	who := said.GetElected()
	if who == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r.number = said.Replica
	c.meetLocked([]*borgpb.Member{who})
	if c.elected >= 0 && c.replicas[c.elected].number == who.Id {
		return
	}
	c.elected = slices.IndexFunc(c.replicas, func(r *replica) bool { return r.number == who.Id || r.number == 0 && r.addr == who.Addr })
}

// AddMachine asks the cell to take in the machine of the borglet at an
// address. The request id is kept over all tries like that of Mutate.
func (c *Client) AddMachine(ctx context.Context, req *borgrpc.AddMachineRequest) (*borgrpc.AddMachineResponse, error) {
	if req.RequestId == "" {
		req.RequestId, req.RequestWallNs = NewRequestID(time.Now())
	}
	if err := c.checkCell(ctx); err != nil {
		return nil, err
	}
	resp, err := call(ctx, c, "add machine "+req.Addr, req, borgrpc.MasterServiceClient.AddMachine)
	if err != nil {
		return nil, err
	}
	return resp, refused(resp.GetResult())
}

// WhoAmI asks what the caller is to the cell.
func (c *Client) WhoAmI(ctx context.Context) (*borgrpc.WhoAmIResponse, error) {
	return tryIdentity(ctx, c, "ask who I am", func(ctx context.Context, m borgrpc.IdentityServiceClient) (*borgrpc.WhoAmIResponse, error) {
		return m.WhoAmI(ctx, &borgrpc.WhoAmIRequest{})
	})
}

// Validate asks whether the cell would make ops one after another, and makes none. A
// refusal is a *RefusedError, with the words that Mutate would return.
func (c *Client) Validate(ctx context.Context, ops []*borgpb.Op) error {
	for _, op := range ops {
		if op.RequestId == "" {
			op.RequestId, op.RequestWallNs = NewRequestID(time.Now())
		}
	}
	resp, err := call(ctx, c, "ask whether the cell would do it", &borgrpc.ValidateRequest{Ops: ops}, borgrpc.MasterServiceClient.Validate)
	if err == nil && resp.Refusal != nil {
		err = &RefusedError{Refusal: resp.Refusal, At: int(resp.Refused)}
	}
	return err
}

// CanI asks whether the caller may do something; why is empty when he may.
func (c *Client) CanI(ctx context.Context, verb, object string) (why string, err error) {
	resp, err := tryIdentity(ctx, c, "ask whether I may", func(ctx context.Context, m borgrpc.IdentityServiceClient) (*borgrpc.CanIResponse, error) {
		return m.CanI(ctx, &borgrpc.CanIRequest{Verb: verb, Object: object})
	})
	if why = resp.GetWhy(); err == nil && why == "" && !resp.GetYes() {
		why = "the master says no"
	}
	return why, err
}

// ListUsers asks of whom the cell knows something.
func (c *Client) ListUsers(ctx context.Context) ([]*borgrpc.UserStatus, error) {
	resp, err := tryIdentity(ctx, c, "list the users", func(ctx context.Context, m borgrpc.IdentityServiceClient) (*borgrpc.ListUsersResponse, error) {
		return m.ListUsers(ctx, &borgrpc.ListUsersRequest{})
	})
	return resp.GetUsers(), err
}

// Invite has the cell make a token for "user/NAME" or "borglet/MACHINE". Its key
// is made here and leaves this process in the token alone. Command and reason are
// for the audit.
func (c *Client) Invite(ctx context.Context, name, command, reason string) (*identity.Token, error) {
	if err := c.checkCell(ctx); err != nil {
		return nil, err
	}
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	resp, err := tryIdentity(ctx, c, "make a token for "+name, func(ctx context.Context, m borgrpc.IdentityServiceClient) (*borgrpc.InviteResponse, error) {
		return m.Invite(ctx, &borgrpc.InviteRequest{Name: name, PublicKey: public, Command: command, Reason: reason})
	})
	if err != nil {
		return nil, err
	}
	credential, err := identity.NewCredential(key, issuedOf(resp.GetCertificate()))
	return &identity.Token{Credential: credential, Masters: resp.GetCertificate().GetMasters()}, err
}

// checkCell makes sure, once, that the masters are those of the cell that was
// meant: a file that was left over must not change another cell.
func (c *Client) checkCell(ctx context.Context) error {
	if c.config.CellID == "" || c.checked.Load() {
		return nil
	}
	// One asks; those who come meanwhile wait for his answer.
	select {
	case c.checking <- struct{}{}:
		defer func() { <-c.checking }()
	case <-ctx.Done():
		return c.gaveUp(ctx, "compare the cell", time.Now(), nil)
	}
	if c.checked.Load() {
		return nil
	}
	cell, err := c.GetCell(ctx)
	if err != nil {
		return err
	}
	if cell.CellId != c.config.CellID {
		return &OtherCellError{Want: c.config.CellID, Got: cell.CellId, GotName: cell.CellName}
	}
	c.checked.Store(true)
	return nil
}

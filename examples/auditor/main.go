// Auditor is a user of a cell who trusts nobody. It works a cell through its
// API as many users at once would (submits, updates, kills, drains, requests
// that are repeated, abandoned, or not allowed), writes down everything that it
// was told, and holds the cell to every promise of the documentation that can
// be checked from outside.
//
// It is written from the documentation and the .proto files alone, and shares
// nothing with the code that it judges: of this module it uses the messages
// and the dialing, and none of the cell's own rules.
package main

import (
	"context"
	crand "crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"borg/identity"
	"borg/proto/borgrpc"
)

const (
	exitViolation   = 1
	exitUsage       = 2
	exitUnreachable = 7
	exitInterrupted = 130
)

// errUsage is a wrong command line.
var errUsage = errors.New("see auditor -h")

// errBroken is that promises were broken, which the table has told.
var errBroken = errors.New("promises are broken")

// errUnreachable is that the cell could not be asked.
var errUnreachable = errors.New("is the cell up?")

// config says what to do.
type config struct {
	masters   []string
	authority *identity.Authority
	cellID    string // empty: whatever cell is there
	seed      uint64
	clients   int
	rate      float64 // steps a second of all clients together; zero: no pause
	duration  time.Duration
	steps     int           // of each client; zero: until duration is over
	drainEach time.Duration // how long a machine drains, and the pause after it
	operator  string        // empty: no drains
	patience  time.Duration
	journal   string // empty: none is kept
	auditOnly bool
	keep      bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	cfg, err := parse(os.Args[1:])
	if err == nil {
		err = run(ctx, cfg, os.Stdout)
	}
	interrupted := ctx.Err() != nil
	stop()
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "auditor:", err)
	switch {
	case interrupted:
		os.Exit(exitInterrupted)
	case errors.Is(err, errUsage):
		os.Exit(exitUsage)
	case errors.Is(err, errUnreachable):
		os.Exit(exitUnreachable)
	}
	os.Exit(exitViolation)
}

func parse(args []string) (config, error) {
	var cfg config
	flags := flag.NewFlagSet("auditor", flag.ContinueOnError)
	authority := flags.String("authority", "", "`FILE` authority.pem of any replica: the auditor is many users")
	cell := flags.String("cell", "aud", "`NAME` of the cell")
	masters := flags.String("masters", "", "`HOST:PORT,...` of every replica")
	flags.StringVar(&cfg.cellID, "cell-id", "", "`ID` that the cell must have")
	flags.Uint64Var(&cfg.seed, "seed", 0, "of what the clients do; 0 makes one")
	flags.IntVar(&cfg.clients, "clients", 4, "users at work at once")
	flags.Float64Var(&cfg.rate, "rate", 20, "steps a second of all clients together")
	flags.DurationVar(&cfg.duration, "duration", time.Minute, "how long to work")
	flags.StringVar(&cfg.operator, "operator", "root", "`USER` who drains machines; empty: nobody does")
	flags.DurationVar(&cfg.drainEach, "drain-each", 5*time.Second, "how long a machine drains")
	flags.DurationVar(&cfg.patience, "settle", 90*time.Second, "how long to wait until all is as asked for")
	flags.StringVar(&cfg.journal, "journal", "", "`FILE` that keeps what was told; must be new, or be there with --audit-only")
	flags.BoolVar(&cfg.auditOnly, "audit-only", false, "do nothing: hold the cell to the journal of an earlier run")
	flags.BoolVar(&cfg.keep, "keep", false, "leave the jobs that live in the end")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return cfg, err
		}
		return cfg, fmt.Errorf("%w: %w", err, errUsage)
	}
	if *masters != "" {
		cfg.masters = strings.Split(*masters, ",")
	}
	switch {
	case flags.NArg() > 0:
		return cfg, fmt.Errorf("argument %q is not understood: %w", flags.Arg(0), errUsage)
	case len(cfg.masters) == 0:
		return cfg, fmt.Errorf("no cell is named; give --masters HOST:PORT,... as in the cell's cell.yaml: %w", errUsage)
	case cfg.clients < 1 || cfg.clients > 100:
		return cfg, fmt.Errorf("--clients %d is not in 1 to 100: %w", cfg.clients, errUsage)
	case cfg.rate <= 0 || cfg.rate > 10_000:
		return cfg, fmt.Errorf("--rate %v is not above 0 and at most 10000: %w", cfg.rate, errUsage)
	case cfg.duration <= 0:
		return cfg, fmt.Errorf("--duration %v is no time: %w", cfg.duration, errUsage)
	case cfg.drainEach <= 0:
		return cfg, fmt.Errorf("--drain-each %v is no time: %w", cfg.drainEach, errUsage)
	case cfg.auditOnly && cfg.journal == "":
		return cfg, fmt.Errorf("--audit-only needs the --journal of the run that is to be audited: %w", errUsage)
	}
	data, err := identity.ReadSecret(*authority)
	if err == nil {
		cfg.authority, err = identity.DecodeAuthority(*cell, data, crand.Reader)
	}
	if err != nil {
		return cfg, fmt.Errorf("--authority: %w: %w", err, errUsage)
	}
	if cfg.seed == 0 {
		cfg.seed = rand.Uint64()>>1 | 1
	}
	return cfg, nil
}

// run works the cell, or only audits it, and prints the table. What was found
// before an interruption is printed too.
func run(ctx context.Context, cfg config, out io.Writer) error {
	w := &witness{book: newBook()}
	err := runWith(ctx, cfg, w, out)
	w.see(func(b *book) {
		if perr := b.print(out); err == nil {
			err = perr
		}
		if n := b.violations(); n > 0 && err == nil {
			err = fmt.Errorf("%d checks failed: %w", n, errBroken)
		}
	})
	if err == nil {
		err = w.broken()
	}
	return err
}

func runWith(ctx context.Context, cfg config, w *witness, out io.Writer) (err error) {
	m, err := dial(w, cfg.authority, cfg.masters, "auditor")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	into := &followed{streams: make(map[int][]*stream)}
	if cfg.auditOnly {
		f, err := os.Open(cfg.journal)
		if err != nil {
			return fmt.Errorf("open the journal: %w", err)
		}
		defer f.Close()
		if err := readJournal(f, w.note); err != nil {
			return err
		}
		return audit(ctx, m, into, cfg.patience, out)
	}
	if cfg.journal != "" {
		if w.journal, err = openJournal(cfg.journal); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.journal.close()) }()
	}
	return work(ctx, cfg, m, into, out)
}

// start finds the cell and begins the journal.
func start(ctx context.Context, cfg config, m *masters, out io.Writer) (racks []string, runName string, err error) {
	for i := range m.replica {
		c, err := m.getCell(ctx, i)
		if err != nil {
			if i == len(m.replica)-1 {
				return nil, "", fmt.Errorf("no master answers, the last one with: %w: %w", err, errUnreachable)
			}
			continue
		}
		if cfg.cellID != "" && c.GetCellId() != cfg.cellID {
			return nil, "", fmt.Errorf("replica %d is of cell %s, not of %s; nothing was done", i+1, c.GetCellId(), cfg.cellID)
		}
		runName = strconv.FormatInt(time.Now().UnixMilli(), 36)
		m.witness.note(record{Kind: recordRun, Run: runName, Seed: cfg.seed, CellID: c.GetCellId()})
		fmt.Fprintf(out, "cell %s (%s), run %s; to repeat: --seed %d --clients %d\n", c.GetCellName(), c.GetCellId(), runName, cfg.seed, cfg.clients)
		break
	}
	machines, _, err := m.listMachines(ctx, 0, borgrpc.ReadMode_READ_MODE_UNSPECIFIED)
	if err != nil {
		return nil, "", fmt.Errorf("list the machines: %w: %w", err, errUnreachable)
	}
	for _, machine := range machines {
		if rack := machine.GetSpec().GetAttributes()["rack"]; rack != "" {
			racks = append(racks, rack)
		}
	}
	return racks, runName, nil
}

// newClients are the users of a run, and its operator; all are made from the
// seed. In an error some may be there.
func newClients(cfg config, w *witness, racks []string, runName string) (clients []*client, operator *client, err error) {
	newClient := func(user, others string, n int) (*client, error) {
		own, err := dial(w, cfg.authority, cfg.masters, user)
		if err != nil {
			return nil, err
		}
		return &client{masters: own, user: user, others: others, rng: rand.New(rand.NewPCG(cfg.seed, uint64(n))), racks: racks}, nil
	}
	for n := range cfg.clients {
		c, err := newClient(fmt.Sprintf("aud-%s-%d", runName, n), "aud-"+runName+"-others", n)
		if err != nil {
			return clients, nil, err
		}
		clients = append(clients, c)
	}
	operator, err = newClient(cfg.operator, "", cfg.clients)
	return clients, operator, err
}

// work has the clients do what they do while watchers look on, then audits.
func work(ctx context.Context, cfg config, m *masters, into *followed, out io.Writer) (err error) {
	racks, runName, err := start(ctx, cfg, m, out)
	if err != nil {
		return err
	}
	clients, operator, err := newClients(cfg, m.witness, racks, runName)
	defer func() {
		for _, c := range append(clients, operator) {
			if c != nil {
				err = errors.Join(err, c.close())
			}
		}
	}()
	if err != nil {
		return err
	}

	watching, stopWatching := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	for i := range m.replica {
		rng := rand.New(rand.NewPCG(cfg.seed, uint64(1_000+i)))
		watchers.Go(func() { m.watch(watching, i, rng) })
		watchers.Go(func() { m.follow(watching, i, into) })
	}
	defer func() { stopWatching(); watchers.Wait() }()

	working, stopWorking := context.WithCancel(ctx)
	if cfg.steps == 0 {
		working, stopWorking = context.WithTimeout(ctx, cfg.duration)
	}
	defer stopWorking()
	var workers, drainer sync.WaitGroup
	for _, c := range clients {
		gap := time.Duration(0)
		if cfg.steps == 0 {
			gap = time.Duration(float64(time.Second) * float64(cfg.clients) / cfg.rate)
		}
		workers.Go(func() { c.work(ctx, working, cfg.steps, gap) })
	}
	if cfg.operator != "" {
		drainer.Go(func() { operator.drainer(ctx, working, cfg.steps, cfg.drainEach) })
	}
	workers.Wait()
	stopWorking()
	drainer.Wait()
	if err := errors.Join(ctx.Err(), m.witness.broken()); err != nil {
		return err
	}
	fmt.Fprintln(out, "the work is done; the audit begins")
	if _, err := settled(ctx, m, cfg.patience, out); err != nil {
		return err
	}
	stopWatching()
	watchers.Wait()
	if err := audit(ctx, m, into, cfg.patience, out); err != nil || cfg.keep {
		return err
	}
	killAll(ctx, clients)
	return audit(ctx, m, into, cfg.patience, out)
}

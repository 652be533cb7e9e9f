package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os/user"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/client"
	"borg/cfg"
	"borg/cli"
	"borg/identity"
	"borg/proto/borgpb"
)

// session is one command at work.
type session struct {
	*console
	// Ended by an interrupt, and by --timeout when one is given.
	ctx  context.Context
	flag *ucli.Context
	args []string
	out  output
	now  func() time.Time

	end    context.CancelFunc
	place  *client.Place
	source *identity.Source
	client *client.Client
	owner  string
	// An update that ends rolled back is what was asked for.
	wantsBack bool
	// What was asked about and the cell does not have; nil: it has all.
	missed *cli.Error
	// Renews the certificate; ended by end.
	renewing sync.WaitGroup
}

var errTimeout = errors.New("--timeout has passed")

func newSession(ctx *ucli.Context, con *console) (*session, error) {
	out, err := newOutput(ctx, con)
	if err != nil {
		return nil, err
	}
	if reason := ctx.String("reason"); len(reason) > maxCommandBytes || !utf8.ValidString(reason) {
		return nil, cli.Errorf(cli.Usage, "--reason: want text of at most %d bytes", maxCommandBytes)
	}
	s := &session{console: con, flag: ctx, args: ctx.Args().Slice(), out: out, now: time.Now}
	s.ctx, s.end = context.WithCancel(ctx.Context)
	if d := ctx.Duration("timeout"); d < 0 {
		return nil, cli.Errorf(cli.Usage, "--timeout %v is negative", d)
	} else if d > 0 {
		s.end()
		s.ctx, s.end = context.WithTimeoutCause(ctx.Context, d, errTimeout)
	}
	return s, nil
}

func (s *session) close() {
	s.tellMoved()
	s.end()
	s.renewing.Wait()
	if s.client != nil {
		_ = s.client.Close()
	}
}

// lookup is where the cell may be named.
func (s *session) lookup() client.Lookup {
	// A task is told the name of its cell, and where its masters are.
	env := "BORG_CELL_FILE"
	if s.env(env) == "" {
		env = "BORG_CELL"
	}
	l := client.Lookup{Flag: s.flag.String("cell"), Env: s.env(env), EnvName: env, Identity: s.flag.String("identity")}
	if l.Identity == "" {
		l.Identity, l.IdentityOrigin = s.env("BORG_IDENTITY"), "$BORG_IDENTITY"
	}
	return l
}

// master returns the client, making it when first asked.
func (s *session) master() (*client.Client, error) {
	if s.client != nil {
		return s.client, nil
	}
	// What cannot be the name of a user is said before anything is asked.
	if _, err := s.user(); err != nil {
		return nil, err
	}
	place, err := s.lookup().Find()
	if err != nil {
		return nil, err
	}
	source, err := place.Source()
	if err != nil {
		return nil, err
	}
	// Renews what has passed half of its life; a command that ends before that
	// leaves it to the next one.
	s.renewing.Go(func() { source.Run(s.ctx) })
	config := client.Config{Masters: place.Masters, CellID: place.CellID, Identity: source, Timeout: s.flag.Duration("timeout"), Waits: s.waits, Retries: s.retries}
	if s.flag.Bool("verbose") {
		config.Log = slog.New(slog.NewTextHandler(s.stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	s.place, s.source = place, source
	if s.client, err = client.New(config); err == nil && place.Simulated != "" {
		s.simulated()
	}
	return s.client, err
}

// waits says that the masters have asked to come back later, and that this is done.
func (s *session) waits(what, why string, wait time.Duration) {
	s.progress("%s: %s; waiting %v", what, why, wait.Round(10*time.Millisecond))
}

// retries tells that no master serves a call, which is tried on.
func (s *session) retries(what string, said map[string]error, left time.Duration) {
	var each []string
	for _, addr := range slices.Sorted(maps.Keys(said)) {
		each = append(each, fmt.Sprintf("%s: %v", addr, said[addr]))
	}
	s.progress("%s: no master has served it yet (%s); trying for %v more", what, strings.Join(each, "; "), left.Round(time.Second))
}

// simulated says that the cell is none that runs anything, and goes by its clock.
func (s *session) simulated() {
	s.progress("cell %s is %s", s.place.Cell, s.place.Simulated)
	c, err := s.client.GetCell(s.ctx)
	if err == nil && c.WallTimeNs > 0 {
		s.now = func() time.Time { return time.Unix(0, c.WallTimeNs) }
	}
}

// user is whose jobs are meant where none is named: --user, $BORG_USER, the user
// in the certificate; without one, the user's configuration or the login name
// made fit for DNS. Who asks is told by the certificate alone.
func (s *session) user() (string, error) {
	if s.owner != "" {
		return s.owner, nil
	}
	for _, given := range []struct{ value, from string }{{s.flag.String("user"), "--user"}, {s.env("BORG_USER"), "$BORG_USER"}} {
		if given.value == "" {
			continue
		}
		if cfg.DNSLabel(given.value) != given.value {
			return "", cli.Errorf(cli.Usage, "%s: %q cannot be part of a DNS name", given.from, given.value).
				Hint("letters a-z, digits and dashes; did you mean %q?", cfg.DNSLabel(given.value))
		}
		s.owner = given.value
		return s.owner, nil
	}
	if place, err := s.lookup().Find(); err == nil {
		if source, err := place.Source(); err == nil {
			s.owner = source.Name().User()
			return s.owner, nil
		}
	}
	config, err := client.ReadUserConfig(client.UserConfigPath())
	if err != nil {
		return "", err
	}
	login := config.User
	if login == "" {
		if u, err := user.Current(); err == nil {
			login = u.Username
		}
	}
	if s.owner = cfg.DNSLabel(login); s.owner == "" {
		return "", cli.Errorf(cli.Usage, "who are you? the login name %q cannot be part of a DNS name", login).Hint("say so with --user NAME or $BORG_USER")
	}
	return s.owner, nil
}

// progress tells people what goes on.
func (s *session) progress(format string, args ...any) {
	if !s.flag.Bool("quiet") {
		fmt.Fprintln(s.stderr, cli.VisibleLines(s.typed(fmt.Sprintf(format, args...))))
	}
}

// say prints a line that was asked for. What others wrote may be in it.
func (s *session) say(format string, args ...any) {
	fmt.Fprintln(s.stdout, cli.VisibleLines(s.typed(fmt.Sprintf(format, args...))))
}

// op is a mutation with what the audit wants to know.
func (s *session) op(op *borgpb.Op) *borgpb.Op {
	op.Command, op.Reason = s.command(), s.flag.String("reason")
	return op
}

// maxCommandBytes is what the cell keeps of a command line, and of a reason.
const maxCommandBytes = 1 << 10

// command is the command line that was typed, as a shell would take it.
func (s *session) command() string {
	words := []string{"borgcfg"}
	for _, arg := range s.console.args[1:] {
		words = append(words, cli.Quote(arg))
	}
	line := strings.Join(words, " ")
	if len(line) > maxCommandBytes {
		line = strings.ToValidUTF8(line[:maxCommandBytes-3], "") + "..."
	}
	return line
}

// explain gives an error its exit code and, where there is something to type
// next, a hint.
func (s *session) explain(err error) error {
	if err == nil {
		return nil
	}
	var done *cli.Error
	if errors.As(err, &done) {
		return err
	}
	var away *client.UnreachableError
	if s.ctx.Err() != nil && errors.Is(context.Cause(s.ctx), errTimeout) && !errors.As(err, &away) {
		return &cli.Error{Code: cli.TimedOut, What: err.Error(), Err: err, Next: "it goes on without you; a longer --timeout waits longer"}
	}
	if errors.Is(context.Cause(s.ctx), context.Canceled) {
		return &cli.Error{Code: cli.Interrupted, What: "interrupted", Err: err}
	}
	e := &cli.Error{Code: cli.Failed, What: err.Error(), Err: err}
	var (
		faults      cfg.Faults
		refused     *client.RefusedError
		notFound    *client.NotFoundError
		notAllowed  *client.NotAllowedError
		distrusted  *client.DistrustedError
		nobody      *client.NoIdentityError
		expired     *client.ExpiredIdentityError
		invalid     *client.InvalidError
		state       *client.StateError
		unreachable *client.UnreachableError
		broken      *client.BrokenStreamError
		otherCell   *client.OtherCellError
		noCell      *client.NoCellError
		unknownCell *client.UnknownCellError
		answered    *client.AnswerError
	)
	switch {
	case errors.As(err, &faults):
		e.Code = cli.Invalid
	case errors.As(err, &refused):
		e.Code, e.Next = refusalCode(refused.Refusal.Kind), s.refusalHint(refused.Refusal)
	case errors.As(err, &notFound):
		e.Code, e.Next = cli.NotFound, s.missingHint("", notFound.Message)
	case errors.As(err, &notAllowed) && notAllowed.Revoked && s.source != nil:
		e.Code, e.Next = cli.NotAllowed, s.wayBack(s.source.Name().ID)
	case errors.As(err, &notAllowed), errors.As(err, &distrusted):
		e.Code = cli.NotAllowed
	case errors.As(err, &expired):
		e.Code, e.Next = cli.NotAllowed, "it cannot renew itself any more; "+s.wayBack(expired.Name.ID)
	case errors.As(err, &nobody):
		e.Code, e.Next = cli.NotAllowed, "log in: borgcfg login TOKEN, with a token that an admin makes\nor name the file of a certificate that you have: --identity FILE, or $BORG_IDENTITY\non the machine of a master: borgmaster login --dir DIRECTORY"
	case errors.As(err, &invalid), errors.As(err, &state):
		e.Code = cli.Refused
	case errors.As(err, &unreachable):
		e.Code = cli.Unreachable
		e.Next = s.unreachableHint(unreachable)
	case errors.As(err, &answered) && answered.Away():
		e.Code = cli.Unreachable
	case errors.As(err, &broken):
		e.Code, e.Next = cli.Unreachable, "a master or the machine went away; run the command again"
	case errors.As(err, &otherCell):
		e.Code, e.Next = cli.Conflict, "the file that names the cell is of another time; is this the cell that you mean? borgcfg config view"
	case errors.As(err, &noCell):
		e.Code = cli.Invalid
		e.Next = "start one here: borgcell run\nor log in to one, with a token that an admin makes: borgcfg login TOKEN\nor name one: borgcfg --cell HOST:PORT --identity FILE ..."
	case errors.As(err, &unknownCell):
		e.Code, e.Next = cli.Invalid, "name it by host:port[,host:port], or by the path of its cell file"
	case s.place == nil && s.client == nil && strings.Contains(err.Error(), "cell file"),
		strings.HasPrefix(err.Error(), "user config"), strings.Contains(err.Error(), "is not an address"):
		e.Code = cli.Invalid
	}
	return e
}

func (s *session) unreachableHint(e *client.UnreachableError) string {
	if e.Answered {
		return "the cell has no elected master, or it is too busy; try again, or see: borgcfg status"
	}
	return fmt.Sprintf("does the cell run? its masters are known from %s", s.place.Origin)
}

func refusalCode(k borgpb.RefusalKind) int {
	switch k {
	case borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND:
		return cli.NotFound
	case borgpb.RefusalKind_REFUSAL_KIND_CONFLICT, borgpb.RefusalKind_REFUSAL_KIND_STALE, borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS:
		return cli.Conflict
	case borgpb.RefusalKind_REFUSAL_KIND_PERMISSION:
		return cli.NotAllowed
	case borgpb.RefusalKind_REFUSAL_KIND_INTERNAL:
		return cli.Failed
	default:
		return cli.Refused
	}
}

func (s *session) refusalHint(r *borgpb.Refusal) string {
	if r.Kind == borgpb.RefusalKind_REFUSAL_KIND_INVALID && r.Field == capabilityField {
		return capabilitiesHint()
	}
	switch r.Kind {
	case borgpb.RefusalKind_REFUSAL_KIND_CONFLICT, borgpb.RefusalKind_REFUSAL_KIND_STALE:
		return "somebody changed it meanwhile; look again and repeat the command"
	case borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND:
		return s.missingHint(r.Object, r.Message)
	case borgpb.RefusalKind_REFUSAL_KIND_PERMISSION:
		return "see what you may: borgcfg whoami"
	case borgpb.RefusalKind_REFUSAL_KIND_MALFORMED:
		return "is the cell older than this program? compare borgcfg version"
	}
	return ""
}

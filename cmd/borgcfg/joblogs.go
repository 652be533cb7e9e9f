package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// logPatience is how long lines of others wait for a machine that says nothing.
	logPatience = 5 * time.Second
	// logBatches bounds what is read ahead of one task.
	logBatches = 4
	// tasksEvery is how often the tasks of a job are asked for while it is followed.
	tasksEvery = time.Second
)

// logBatch is whole lines of a task that were seen at one time, or a word of how
// it stands with them.
type logBatch struct {
	wallNs int64
	lines  []byte
	// note is to be told first.
	note string
	// atEnd: all that was there has been sent.
	atEnd bool
	// over: the stream of an attempt has ended, with err if not well.
	over bool
	err  error
}

// logSource is one task of a job whose output is read. All but what its goroutine
// is given belongs to the merger.
type logSource struct {
	index uint32
	feed  chan logBatch
	// head is the oldest lines that are not yet shown; nil: none have come.
	head *logBatch
	// behind: lines that were there before are still to come, and others wait for
	// them.
	behind bool
	// reading: its goroutine is at work, on this attempt.
	reading bool
	attempt uint64
	// complete: that attempt has been read to its end.
	complete bool
	// From where it goes on after an error. Written by the goroutine while it is at
	// work.
	offset int64
	// untimed: its borglet is older, and cannot go on in the midst. As offset.
	untimed bool
	// trouble is what was last told of it.
	trouble string
}

// merger brings the output of the tasks of a job together by time. One goroutine
// owns it; each source has one that reads.
type merger struct {
	s       *session
	m       *client.Client
	job     jobName
	req     *borgrpc.LogsRequest
	sources map[uint32]*logSource
	// order is the sources by index.
	order []*logSource
	wake  chan struct{}
	wg    sync.WaitGroup
	width int
	// failed is how many tasks could not be read to their end.
	failed int
	dead   bool
	// wrote: a line was printed.
	wrote bool
}

// jobLogs prints what all tasks of a job wrote, in the order in which their machines
// saw it, each line with the index of its task.
func (s *session) jobLogs(job jobName, req *borgrpc.LogsRequest) error {
	if req.Attempt > 0 {
		return cli.Errorf(cli.Usage, "--attempt %d is of one task, and %s is a job", req.Attempt, s.args[0]).
			Hint("name one of its tasks by number: %s/0", s.args[0])
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	req.Times = true
	ctx, cancel := context.WithCancel(s.ctx)
	g := &merger{s: s, m: m, job: job, req: req, sources: map[uint32]*logSource{}, wake: make(chan struct{}, 1)}
	defer g.wg.Wait()
	defer cancel()
	tasks, err := g.tasks(ctx)
	var missing *client.NotFoundError
	if errors.As(err, &missing) {
		return s.noSuchTask(job, missing)
	}
	if err != nil {
		return err
	}
	if len(tasks) == 0 {
		if run, err := s.lastRun(job); err != nil || run != "" {
			return s.logsOfRun(job, run, req, err)
		}
	}
	if limit := s.flag.Int("max-tasks"); len(tasks) > limit {
		return cli.Errorf(cli.Usage, "%s has %d tasks, and at most %d are read at once", s.short(job.user, job.name), len(tasks), limit).
			Hint("name one of its tasks by number: %s/0\nor say --max-tasks %d; a replica serves a user 64 at a time", s.args[0], len(tasks))
	}
	g.width = len(strconv.Itoa(max(len(tasks)-1, 0)))
	g.take(ctx, tasks)
	if err := g.run(ctx); err != nil {
		return err
	}
	if len(g.order) > 0 && !g.wrote && g.failed == 0 {
		first := proto.CloneOf(req)
		first.Index = g.order[0].index
		s.tellOtherStream(m, first)
	}
	if g.failed > 0 {
		return cli.Errorf(cli.Unreachable, "of %d tasks of %s, the output of %d could not be read to its end", len(g.order), s.short(job.user, job.name), g.failed)
	}
	return nil
}

// logsOfRun prints what the tasks of a run of a cron job wrote.
func (s *session) logsOfRun(cron jobName, run string, req *borgrpc.LogsRequest, err error) error {
	if err != nil {
		return err
	}
	s.progress("%s is a cron job; this is its last run, %s; all runs: borgcfg status %s", s.short(cron.user, cron.name), run, s.short(cron.user, cron.name))
	req.User, req.Name = cron.user, run
	return s.jobLogs(jobName{user: cron.user, name: run}, req)
}

func (g *merger) tasks(ctx context.Context) ([]*borgpb.Task, error) {
	resp, err := g.m.ListTasks(ctx, &borgrpc.ListTasksRequest{User: g.job.user, Name: g.job.name})
	return resp.GetTasks(), err
}

// take begins to read of tasks what is not yet read: those that are new, and
// those that have moved.
func (g *merger) take(ctx context.Context, tasks []*borgpb.Task) {
	g.dead = true
	for _, t := range tasks {
		st := t.GetStatus()
		if st.GetState() != borgpb.State_STATE_DEAD {
			g.dead = false
		}
		src := g.sources[t.GetIndex()]
		if src == nil {
			if len(g.order) >= g.s.flag.Int("max-tasks") {
				continue
			}
			src = &logSource{index: t.GetIndex(), feed: make(chan logBatch, logBatches), behind: true}
			g.sources[src.index], g.order = src, append(g.order, src)
			if st.GetAttempt() == 0 {
				src.behind = false
				g.s.progress("%s has not been placed yet; why: borgcfg why %s", g.name(src), g.name(src))
			}
		}
		attempt := st.GetAttempt()
		switch {
		case attempt == 0 || src.reading:
			continue
		case attempt > src.attempt:
			if src.attempt > 0 {
				g.s.progress("%s: attempt %d on machine %s", g.name(src), attempt, orWord(st.GetMachine(), "?"))
			}
			g.read(ctx, src, attempt)
		case !src.complete && g.req.Follow:
			g.read(ctx, src, attempt)
		}
	}
}

func (g *merger) name(src *logSource) string {
	return fmt.Sprintf("%s/%d", g.s.short(g.job.user, g.job.name), src.index)
}

// read starts the goroutine that reads one attempt of a task. It ends when that
// is done, and with ctx; the merger waits for it.
func (g *merger) read(ctx context.Context, src *logSource, attempt uint64) {
	req := proto.CloneOf(g.req)
	req.Index, req.Attempt = src.index, attempt
	if src.attempt > 0 {
		// What was asked of the past has been answered by the attempt before, or
		// by its first part.
		req.TailBytes, req.SinceWallNs = 0, 0
	}
	if attempt != src.attempt {
		src.offset = 0
	}
	req.FromOffset = src.offset
	src.reading, src.attempt, src.complete = true, attempt, false
	push := func(b logBatch) error {
		select {
		case src.feed <- b:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case g.wake <- struct{}{}:
		default:
		}
		return nil
	}
	g.wg.Go(func() {
		var rest lineBuffer
		told := false
		err := g.m.Logs(ctx, req, func(resp *borgrpc.LogsResponse) error {
			b := logBatch{wallNs: resp.WallNs, atEnd: resp.AtEnd, note: g.s.logNote(g.name(src), req, resp, &told)}
			if !resp.AtEnd {
				src.untimed = resp.WallNs == 0
				src.offset = resp.Offset + int64(len(resp.Data))
				b.lines = rest.take(resp.Data)
			}
			if !b.atEnd && b.note == "" && len(b.lines) == 0 {
				return nil
			}
			return push(b)
		})
		if err != nil && req.Follow {
			// Its last line is read again as a whole.
			src.offset -= int64(len(rest.part))
			rest.part = nil
		}
		if lines := rest.flush(); len(lines) > 0 {
			_ = push(logBatch{wallNs: time.Now().UnixNano(), lines: lines})
		}
		_ = push(logBatch{over: true, err: err})
	})
}

// run prints until all is read, and when followed until all tasks are dead.
func (g *merger) run(ctx context.Context) error {
	looked := make(chan []*borgpb.Task)
	gone := make(chan error, 1)
	if g.req.Follow {
		g.wg.Go(func() { gone <- g.watch(ctx, looked) })
	}
	for ctx.Err() == nil {
		if src := g.next(ctx); src != nil {
			if err := g.print(src); err != nil {
				return err
			}
			continue
		}
		if !g.busy() && (!g.req.Follow || g.dead) {
			if g.dead && g.req.Follow {
				g.s.progress("%s is dead", g.s.short(g.job.user, g.job.name))
			}
			return nil
		}
		select {
		case <-ctx.Done():
		case <-g.wake:
		case tasks := <-looked:
			g.take(ctx, tasks)
		case err := <-gone:
			var missing *client.NotFoundError
			if !errors.As(err, &missing) {
				return err
			}
			g.s.progress("%s is gone", g.s.short(g.job.user, g.job.name))
			// What its tasks wrote last is still on its way.
			g.dead, gone = true, nil
		}
	}
	return context.Cause(ctx)
}

// busy tells whether lines may still come without another look at the tasks.
func (g *merger) busy() bool {
	for _, src := range g.order {
		if src.reading {
			return true
		}
	}
	return false
}

// watch tells of the tasks of the job, again and again, until it is gone.
func (g *merger) watch(ctx context.Context, looked chan<- []*borgpb.Task) error {
	tick := time.NewTicker(tasksEvery)
	defer tick.Stop()
	for {
		tasks, err := g.tasks(ctx)
		if err != nil {
			return err
		}
		select {
		case looked <- tasks:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next is the source with the oldest lines; nil: there are none at this time. It
// waits for sources that are behind, but not for ever.
func (g *merger) next(ctx context.Context) *logSource {
	var oldest *logSource
	for _, src := range g.order {
		g.fill(ctx, src)
		if src.head != nil && (oldest == nil || src.head.wallNs < oldest.head.wallNs) {
			oldest = src
		}
	}
	return oldest
}

// fill gets the next lines of a source.
func (g *merger) fill(ctx context.Context, src *logSource) {
	for src.head == nil && src.reading {
		if !src.behind {
			select {
			case b := <-src.feed:
				g.hear(src, b)
			default:
				return
			}
			continue
		}
		patience := time.NewTimer(logPatience)
		select {
		case b := <-src.feed:
			g.hear(src, b)
		case <-patience.C:
			src.behind = false
			g.s.progress("%s: its machine does not answer; the others go on, and its lines come when they come", g.name(src))
		case <-ctx.Done():
			src.behind = false
		}
		patience.Stop()
	}
}

// hear takes in what a source's goroutine says.
func (g *merger) hear(src *logSource, b logBatch) {
	if b.note != "" {
		g.s.progress("%s", b.note)
	}
	switch {
	case b.over:
		src.reading, src.behind = false, false
		// While the job is followed, what could not be read is tried again.
		src.complete = b.err == nil || src.untimed
		var missing *client.NotFoundError
		if errors.As(b.err, &missing) && g.req.Follow {
			// It has not started yet.
			return
		}
		if b.err != nil && !errors.As(b.err, &missing) && !g.req.Follow {
			g.failed++
		}
		if b.err != nil && b.err.Error() != src.trouble {
			src.trouble = b.err.Error()
			g.s.progress("%s: %v", g.name(src), b.err)
		}
	case b.atEnd:
		src.behind = false
	case len(b.lines) > 0:
		src.head = &b
	}
}

// print shows the lines at the head of a source.
func (g *merger) print(src *logSource) error {
	lines := src.head.lines
	src.head = nil
	prefix := fmt.Sprintf("%*d| ", g.width, src.index)
	if g.s.out.color {
		// Six colours that can be told apart on dark and light.
		prefix = fmt.Sprintf("\x1b[%dm%s\x1b[0m", 31+src.index%6, prefix)
	}
	var b bytes.Buffer
	g.wrote = g.wrote || len(lines) > 0
	for line := range bytes.Lines(lines) {
		b.WriteString(prefix)
		if g.s.terminal {
			line = []byte(cli.VisibleLines(string(line)))
		}
		b.Write(line)
	}
	if _, err := g.s.stdout.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

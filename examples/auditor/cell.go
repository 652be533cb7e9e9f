package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// tryTimeout bounds one call. While nobody is elected a replica answers only
// after 5 s.
const tryTimeout = 7 * time.Second

// witness is the book with its journal, for many goroutines.
type witness struct {
	mu      sync.Mutex // guards what follows
	book    *book
	journal *journal // nil: none
	err     error    // the first of the journal
}

// note writes a record down before anybody goes on.
func (w *witness) note(r record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.journal.write(r); err != nil && w.err == nil {
		w.err = err
	}
	w.book.note(r)
}

// see has an answer judged.
func (w *witness) see(judge func(*book)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	judge(w.book)
}

// broken is why the journal could not be kept; nil: it is.
func (w *witness) broken() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *witness) floor() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.book.floor
}

// masters are connections to every replica in one user's name.
type masters struct {
	witness *witness
	conns   []io.Closer
	replica []borgrpc.MasterServiceClient
}

func dial(w *witness, authority *identity.Authority, addrs []string, user string) (*masters, error) {
	m := &masters{witness: w}
	who, err := authority.Source(identity.Name{Cell: authority.Cell(), Role: identity.User, ID: user}, time.Now(), identity.UserLife)
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		conn, err := door.Dial(addr, who, door.AnyMaster(who))
		if err != nil {
			return nil, errors.Join(err, m.close())
		}
		m.conns = append(m.conns, conn)
		m.replica = append(m.replica, borgrpc.NewMasterServiceClient(conn))
	}
	return m, nil
}

func (m *masters) close() (err error) {
	for _, c := range m.conns {
		err = errors.Join(err, c.Close())
	}
	return err
}

// source is replica i, asked now.
func (m *masters) source(i int, mode borgrpc.ReadMode) source {
	return source{replica: i + 1, stale: mode == borgrpc.ReadMode_READ_MODE_STALE, floor: m.witness.floor()}
}

// codesOfPage are the codes of errors that docs/master.md names, and those of
// calls that we ended ourselves.
var codesOfPage = []codes.Code{
	codes.Unavailable, codes.NotFound, codes.InvalidArgument, codes.FailedPrecondition, codes.PermissionDenied, codes.ResourceExhausted,
	codes.Canceled, codes.DeadlineExceeded,
}

// failed judges the error of a call.
func (m *masters) failed(i int, what string, err error) {
	m.witness.see(func(b *book) {
		b.check("errors", slices.Contains(codesOfPage, status.Code(err)), "%s by replica %d: %v", what, i+1, err)
	})
}

// getJob asks replica i for a job; nil: it is not there, or no answer.
func (m *masters) getJob(ctx context.Context, i int, user, name string, mode borgrpc.ReadMode) *borgpb.Job {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	from := m.source(i, mode)
	resp, err := m.replica[i].GetJob(ctx, &borgrpc.GetJobRequest{User: user, Name: name, Mode: mode})
	if status.Code(err) == codes.NotFound {
		m.witness.see(func(b *book) { b.sawNoJob(from, key(user, name)) })
	}
	if err != nil {
		m.failed(i, "GetJob", err)
		return nil
	}
	m.witness.see(func(b *book) {
		b.sawIndex(from, "job "+key(user, name), resp.GetIndex())
		b.sawJob(from, resp.GetJob(), resp.GetIndex())
	})
	return resp.GetJob()
}

// listJobs asks for all pages of jobs. The index is zero when the pages are of
// different ones.
func (m *masters) listJobs(ctx context.Context, i int, req *borgrpc.ListJobsRequest) (jobs []*borgpb.Job, index uint64, err error) {
	index, err = pages(func() (uint64, bool, error) {
		ctx, cancel := context.WithTimeout(ctx, tryTimeout)
		defer cancel()
		from := m.source(i, req.GetMode())
		resp, err := m.replica[i].ListJobs(ctx, req)
		if err != nil {
			m.failed(i, "ListJobs", err)
			return 0, false, err
		}
		m.witness.see(func(b *book) { b.sawJobs(from, req, resp) })
		jobs = append(jobs, resp.GetJobs()...)
		req = proto.CloneOf(req)
		req.After = resp.GetNextAfter()
		return resp.GetIndex(), req.GetAfter() != "", nil
	})
	return jobs, index, err
}

// pages asks for one page after the other, as long as there are more. The index is
// zero when they are of different ones.
func pages(ask func() (index uint64, more bool, err error)) (index uint64, err error) {
	for page := 0; ; page++ {
		at, more, err := ask()
		switch {
		case err != nil:
			return 0, err
		case page == 0:
			index = at
		case at != index:
			index = 0
		}
		if !more {
			return index, nil
		}
	}
}

// listTasks asks for all pages of tasks, as listJobs does.
func (m *masters) listTasks(ctx context.Context, i int, req *borgrpc.ListTasksRequest) (tasks []*borgpb.Task, index uint64, err error) {
	index, err = pages(func() (uint64, bool, error) {
		resp, err := m.tasksPage(ctx, i, req)
		if err != nil {
			return 0, false, err
		}
		tasks = append(tasks, resp.GetTasks()...)
		req = proto.CloneOf(req)
		req.After = resp.GetNextAfter()
		return resp.GetIndex(), req.GetAfter() != "", nil
	})
	return tasks, index, err
}

func (m *masters) tasksPage(ctx context.Context, i int, req *borgrpc.ListTasksRequest) (*borgrpc.ListTasksResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	from := m.source(i, req.GetMode())
	resp, err := m.replica[i].ListTasks(ctx, req)
	if err != nil {
		m.failed(i, "ListTasks", err)
		return nil, err
	}
	m.witness.see(func(b *book) { b.sawTasks(from, req, resp) })
	return resp, nil
}

// listMachines asks for all pages of machines, as listJobs does.
func (m *masters) listMachines(ctx context.Context, i int, mode borgrpc.ReadMode) (machines []*borgpb.Machine, index uint64, err error) {
	req := &borgrpc.ListMachinesRequest{Mode: mode}
	index, err = pages(func() (uint64, bool, error) {
		ctx, cancel := context.WithTimeout(ctx, tryTimeout)
		defer cancel()
		from := m.source(i, mode)
		resp, err := m.replica[i].ListMachines(ctx, req)
		if err != nil {
			m.failed(i, "ListMachines", err)
			return 0, false, err
		}
		m.witness.see(func(b *book) { b.sawMachines(from, req, resp) })
		machines = append(machines, resp.GetMachines()...)
		req = &borgrpc.ListMachinesRequest{Mode: mode, After: resp.GetNextAfter()}
		return resp.GetIndex(), req.GetAfter() != "", nil
	})
	return machines, index, err
}

func (m *masters) getCell(ctx context.Context, i int) (*borgrpc.GetCellResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	from := m.source(i, borgrpc.ReadMode_READ_MODE_STALE)
	resp, err := m.replica[i].GetCell(ctx, &borgrpc.GetCellRequest{})
	if err != nil {
		m.failed(i, "GetCell", err)
		return nil, err
	}
	m.witness.see(func(b *book) { b.sawCell(from, resp) })
	return resp, nil
}

func (m *masters) why(ctx context.Context, i int, user, name string) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	from := m.source(i, borgrpc.ReadMode_READ_MODE_UNSPECIFIED)
	resp, err := m.replica[i].Why(ctx, &borgrpc.WhyRequest{User: user, Name: name})
	if err != nil {
		m.failed(i, "Why", err)
		return
	}
	m.witness.see(func(b *book) { b.sawWhy(from, key(user, name), resp) })
}

// events reads a stream of all events from fromIndex on until it ends, and
// tells why it did; nil: all were told.
func (m *masters) events(ctx context.Context, i int, fromIndex uint64, follow bool) (*stream, error) {
	s := newStream(m.source(i, borgrpc.ReadMode_READ_MODE_STALE), fromIndex)
	answers, err := m.replica[i].Events(ctx, &borgrpc.EventsRequest{FromIndex: fromIndex, Follow: follow})
	if err != nil {
		return s, err
	}
	for {
		resp, err := answers.Recv()
		if err == io.EOF {
			return s, nil
		}
		if err != nil {
			return s, err
		}
		m.witness.see(func(b *book) { b.sawEvents(s, resp) })
	}
}

// output reads the standard output of a task's last copy.
func (m *masters) output(ctx context.Context, i int, t *borgpb.Task) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	answers, err := m.replica[i].Logs(ctx, &borgrpc.LogsRequest{User: t.GetMeta().GetUser(), Name: t.GetMeta().GetName(), Index: t.GetIndex(), Stream: borgrpc.LogStream_LOG_STREAM_STDOUT})
	var text []byte
	for err == nil {
		var resp *borgrpc.LogsResponse
		if resp, err = answers.Recv(); err == nil {
			text = append(text, resp.GetData()...)
		}
	}
	if err != io.EOF {
		return "", fmt.Errorf("read the output of %s from replica %d: %w", taskName(t), i+1, err)
	}
	return string(text), nil
}

// snapshot asks replica i for the whole cell; index zero: it changed while it
// was asked.
func (m *masters) snapshot(ctx context.Context, i int) (s snapshot, err error) {
	const mode = borgrpc.ReadMode_READ_MODE_UNSPECIFIED
	s.from = m.source(i, mode)
	jobs, ofJobs, err := m.listJobs(ctx, i, &borgrpc.ListJobsRequest{Dead: true})
	if err != nil {
		return s, err
	}
	tasks, index, err := m.listTasks(ctx, i, &borgrpc.ListTasksRequest{Attempts: true})
	if err != nil {
		return s, err
	}
	machines, ofMachines, err := m.listMachines(ctx, i, mode)
	if err != nil {
		return s, err
	}
	c, err := m.getCell(ctx, i)
	if err != nil {
		return s, err
	}
	if ofJobs == index && ofMachines == index {
		s.index = index
	}
	if c.GetAppliedIndex() == index {
		s.cell = c
	}
	s.jobs, s.tasks, s.machines = jobs, tasks, machines
	return s, nil
}

package borgmaster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/journal"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// Bytes in one message.
	maxHistoryBytes = 1 << 20
	// How long another replica is waited for before it says something.
	historyTimeout = 5 * time.Second
	// A picture of the cell is at most about so old.
	pictureAge = 25 * time.Hour
	// Rows of usage may be written so much later than others of their time.
	usageLate = 15 * time.Minute
	// Rows are put in order for so long at once.
	usageStep = 5 * time.Minute
	// Most that may be asked for with last.
	maxHistoryLast = 100_000
)

// historyAPI serves HistoryService.
type historyAPI struct {
	borgrpc.UnimplementedHistoryServiceServer
	m *Master
}

// History tells what happened, from this replica's files and, for what they lack,
// from those of others.
func (a *historyAPI) History(req *borgrpc.HistoryRequest, stream borgrpc.HistoryService_HistoryServer) error {
	m, ctx := a.m, stream.Context()
	switch {
	case m.cfg.Journal == nil:
		return status.Error(codes.Unimplemented, "this replica keeps no events")
	case req.GetLast() > maxHistoryLast:
		return status.Errorf(codes.InvalidArgument, "the last %d, at most %d: ask for a time instead", req.GetLast(), maxHistoryLast)
	}
	kind := ofHistories
	if req.GetLocal() {
		kind = ofLocalHistories
	}
	read, err := m.longRead(ctx, kind)
	if err != nil {
		return err
	}
	defer read.leave()
	send := func(resp *borgrpc.HistoryResponse) error { return read.sent(func() error { return stream.Send(resp) }) }
	caller := door.Caller(ctx)
	t := &teller{
		m: m, filter: historyFilter{req, caller.ID, m.isAdmin(caller)}, out: &historySender{send: send, next: new(borgrpc.HistoryResponse)},
		sinceNs: req.GetSinceWallNs(),
	}
	if req.GetFacts() && t.sinceNs > 0 {
		t.sinceNs = max(t.sinceNs-int64(pictureAge), 1)
	}
	if err := m.readIndex(ctx); err != nil && !req.GetLocal() {
		t.out.next.Silent = append(t.out.next.Silent, &borgrpc.SilentReplica{Replica: m.cfg.Replica, Why: "what was done last may be missing: " + door.Reason(err)})
	}
	if !req.GetLocal() {
		t.out.next.Dropped = t.filter.dropped(m.cfg.Journal.Dropped())
	}
	m.cfg.Journal.Flush(m.cfg.Log)
	if req.GetLocal() {
		err = t.own(ctx, t.out.add)
	} else {
		err = t.merged(ctx)
	}
	if err == nil {
		err = t.out.flush()
	}
	return m.grpcError(err)
}

// teller answers one request.
type teller struct {
	m       *Master
	filter  historyFilter
	sinceNs int64
	out     *historySender
	// Of the sources, which end with what they are read for.
	reading sync.WaitGroup
}

// gaps are the parts of the log of which this replica knows nothing.
func (t *teller) gaps(ctx context.Context) (holes, error) {
	var all holes
	var last uint64
	damaged := ""
	w := t.m.walks(ctx)
	defer w.rest()
	err := t.m.cfg.Journal.Read(t.sinceNs, t.filter.GetUntilWallNs(), journal.Pick{Gaps: true}, w.step, func(b *borgpb.JournalBlock) error {
		for _, g := range b.Gaps {
			if g.To == 0 {
				damaged = g.Why
				continue
			}
			all = append(all, g)
			last = max(last, g.To)
		}
		for _, e := range b.Entries {
			if damaged != "" && e.Index > last+1 {
				all = append(all, &borgpb.AuditHole{From: last + 1, To: e.Index - 1, Why: damaged})
			}
			damaged = ""
			last = max(last, e.Index)
		}
		return nil
	})
	if damaged != "" {
		if applied := t.m.cfg.Log.State().Applied; applied > last {
			all = append(all, &borgpb.AuditHole{From: last + 1, To: applied, Why: damaged})
		}
	}
	return all.sorted(), err
}

// own tells what this replica itself has; gaps come first.
func (t *teller) own(ctx context.Context, f func(*borgrpc.HistoryResponse) error) error {
	req := t.filter.HistoryRequest
	if !req.GetUsageOnly() {
		gaps, err := t.gaps(ctx)
		if err != nil {
			return err
		}
		if req.GetLocal() {
			gaps = gaps.and(req.GetParts())
		}
		if err := f(&borgrpc.HistoryResponse{Gaps: gaps}); err != nil {
			return err
		}
	}
	w := t.m.walks(ctx)
	defer w.rest()
	return t.m.cfg.Journal.Read(t.sinceNs, req.GetUntilWallNs(), journal.Pick{Text: t.filter.text()}, w.step, func(b *borgpb.JournalBlock) error {
		resp := new(borgrpc.HistoryResponse)
		for _, e := range b.Entries {
			if e := t.filter.entry(e); e != nil {
				resp.Entries = append(resp.Entries, e)
			}
		}
		for _, u := range b.Usage {
			if t.filter.row(u) {
				resp.Usage = append(resp.Usage, u)
			}
		}
		if req.GetFacts() && !req.GetUsageOnly() {
			resp.Picture = b.Picture
		}
		t.m.seenHistory(ctx, resp)
		if len(resp.Entries)+len(resp.Usage)+len(resp.Picture) == 0 {
			return nil
		}
		w.rest()
		return f(resp)
	})
}

// merged tells what all replicas have: first the events, then what copies used.
func (t *teller) merged(ctx context.Context) error {
	req := t.filter.HistoryRequest
	silent := map[uint64]string{}
	if !req.GetUsageOnly() {
		if err := t.mergeEntries(ctx, silent); err != nil {
			return err
		}
	}
	if req.GetUsage() || req.GetUsageOnly() {
		if err := t.mergeUsage(ctx, silent); err != nil {
			return err
		}
	}
	for id, why := range silent {
		t.out.next.Silent = append(t.out.next.Silent, &borgrpc.SilentReplica{Replica: id, Why: why})
	}
	slices.SortFunc(t.out.next.Silent, func(a, b *borgrpc.SilentReplica) int { return int(int64(a.Replica) - int64(b.Replica)) })
	return nil
}

// historySource is what one replica has, part by part.
type historySource struct {
	replica uint64
	parts   chan *borgrpc.HistoryResponse
	// Why it ended; set before parts is closed.
	err error
}

func (t *teller) sourceOf(ctx context.Context, replica uint64, read func(ctx context.Context, f func(*borgrpc.HistoryResponse) error) error) *historySource {
	s := &historySource{replica: replica, parts: make(chan *borgrpc.HistoryResponse, 2)}
	t.reading.Go(func() {
		defer close(s.parts)
		s.err = read(ctx, func(resp *borgrpc.HistoryResponse) error {
			select {
			case s.parts <- resp:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	return s
}

// sources are this replica with its own request, and all others with theirs.
func (t *teller) sources(ctx context.Context, own *teller, theirs *borgrpc.HistoryRequest) (all []*historySource) {
	all = append(all, t.sourceOf(ctx, t.m.cfg.Replica, own.own))
	if theirs == nil {
		return all
	}
	for _, member := range t.m.cfg.Members.Members() {
		if id := member.Id; id != t.m.cfg.Replica {
			all = append(all, t.sourceOf(ctx, id, func(ctx context.Context, f func(*borgrpc.HistoryResponse) error) error {
				return t.m.historyOf(ctx, id, theirs, f)
			}))
		}
	}
	return all
}

// historyOf asks another replica, in the caller's name, what it has itself.
func (m *Master) historyOf(ctx context.Context, replica uint64, req *borgrpc.HistoryRequest, f func(*borgrpc.HistoryResponse) error) error {
	conn, err := m.replicaConn(replica)
	if err != nil {
		return err
	}
	ctx, silence, end := untilSilent(ctx, historyTimeout)
	defer end()
	stream, err := borgrpc.NewHistoryServiceClient(conn).History(ctx, req, grpc.WaitForReady(false))
	for err == nil {
		var resp *borgrpc.HistoryResponse
		if resp, err = stream.Recv(); err == nil {
			silence.Stop()
			// That replica may know an earlier policy.
			m.seenHistory(ctx, resp)
			err = f(resp)
			silence.Reset(historyTimeout)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// mergeEntries tells the events in the order of the log. Others are asked only for
// what this replica lacks.
func (t *teller) mergeEntries(ctx context.Context, silent map[uint64]string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer t.reading.Wait()
	defer cancel()
	gaps, err := t.gaps(ctx)
	if err != nil {
		return err
	}
	req := proto.CloneOf(t.filter.HistoryRequest)
	req.Usage, req.Last = false, 0
	var theirs *borgrpc.HistoryRequest
	if len(gaps) > 0 {
		theirs = proto.CloneOf(req)
		theirs.Local, theirs.Parts = true, gaps
	}
	own := &teller{m: t.m, filter: historyFilter{req, t.filter.caller, t.filter.all}, sinceNs: t.sinceNs}
	var live []*entryHead
	for _, s := range t.sources(ctx, own, theirs) {
		live = append(live, &entryHead{historySource: s})
	}
	all := slices.Clone(live)
	var told uint64
	newest := ring[*borgpb.JournalEntry]{most: int(t.filter.GetLast())}
	tell := func(e *borgpb.JournalEntry) error {
		if newest.most > 0 {
			newest.add(e)
			return nil
		}
		return t.out.add(&borgrpc.HistoryResponse{Entries: []*borgpb.JournalEntry{e}})
	}
	for len(live) > 0 {
		for _, h := range live {
			picture := h.fill()
			if h.replica == t.m.cfg.Replica && len(picture) > 0 {
				if err := t.out.add(&borgrpc.HistoryResponse{Picture: picture}); err != nil {
					return err
				}
			}
		}
		live = slices.DeleteFunc(live, func(h *entryHead) bool { return len(h.entries) == 0 })
		if len(live) == 0 {
			break
		}
		first := slices.MinFunc(live, func(a, b *entryHead) int { return int(int64(a.entries[0].Index) - int64(b.entries[0].Index)) })
		e := first.entries[0]
		first.entries = first.entries[1:]
		if e.Index <= told {
			continue
		}
		told = e.Index
		if err := tell(e); err != nil {
			return err
		}
	}
	for _, e := range newest.list() {
		if err := t.out.add(&borgrpc.HistoryResponse{Entries: []*borgpb.JournalEntry{e}}); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, h := range all {
		switch {
		case h.err == nil && h.replica != t.m.cfg.Replica:
			gaps = gaps.and(h.gaps)
		case h.err != nil && h.replica == t.m.cfg.Replica:
			return h.err
		case h.err != nil:
			silent[h.replica] = door.Reason(h.err)
		}
	}
	t.out.next.Gaps = append(t.out.next.Gaps, gaps...)
	return nil
}

// entryHead is a source with the entries that are next.
type entryHead struct {
	*historySource
	entries []*borgpb.JournalEntry
	gaps    holes
}

// fill waits for entries, and returns the pictures that came before them.
func (h *entryHead) fill() (picture []*borgpb.ObjectFacts) {
	for len(h.entries) == 0 {
		resp, ok := <-h.parts
		if !ok {
			return picture
		}
		h.entries, h.gaps, picture = resp.Entries, append(h.gaps, resp.Gaps...), append(picture, resp.Picture...)
	}
	return picture
}

// mergeUsage tells what copies used, by time, each row once.
func (t *teller) mergeUsage(ctx context.Context, silent map[uint64]string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer t.reading.Wait()
	defer cancel()
	req := proto.CloneOf(t.filter.HistoryRequest)
	req.UsageOnly, req.Facts, req.Last = true, false, 0
	theirs := proto.CloneOf(req)
	theirs.Local = true
	own := &teller{m: t.m, filter: historyFilter{req, t.filter.caller, t.filter.all}, sinceNs: req.GetSinceWallNs()}
	sources := t.sources(ctx, own, theirs)
	newest := ring[*borgpb.UsageRow]{most: int(t.filter.GetLast())}
	tell := func(rows []*borgpb.UsageRow) error {
		if newest.most == 0 {
			return t.out.add(&borgrpc.HistoryResponse{Usage: rows})
		}
		for _, u := range rows {
			newest.add(u)
		}
		return nil
	}
	rows := &rowMerge{reached: make([]int64, len(sources)), ended: make([]bool, len(sources))}
	for i := rows.behind(); i >= 0; i = rows.behind() {
		resp, ok := <-sources[i].parts
		if !ok {
			rows.ended[i] = true
			switch err := sources[i].err; {
			case err != nil && i == 0:
				return err
			case err != nil:
				silent[sources[i].replica] = door.Reason(err)
			}
		}
		if err := tell(rows.add(i, resp.GetUsage())); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.out.add(&borgrpc.HistoryResponse{Usage: newest.list()})
}

// rowMerge puts rows of several replicas in order, each once. What comes from one
// replica is nearly in order: a row is late by usageLate at most.
type rowMerge struct {
	// How far each replica has come, and whether it has told everything.
	reached []int64
	ended   []bool
	waiting []*borgpb.UsageRow
	// Everything before this was told.
	toldNs int64
}

// behind is the replica that is to be heard next; -1: all have ended.
func (r *rowMerge) behind() int {
	at := -1
	for i := range r.reached {
		if !r.ended[i] && (at < 0 || r.reached[i] < r.reached[at]) {
			at = i
		}
	}
	return at
}

// add takes in rows of a replica, and returns those that are next.
func (r *rowMerge) add(i int, rows []*borgpb.UsageRow) (out []*borgpb.UsageRow) {
	for _, u := range rows {
		r.reached[i] = max(r.reached[i], u.FromNs)
	}
	r.waiting = append(r.waiting, rows...)
	next := r.behind()
	if next >= 0 && r.reached[next]-int64(usageLate) < r.toldNs+int64(usageStep) {
		return nil
	}
	r.waiting = journal.Furthest(r.waiting)
	n := len(r.waiting)
	if next >= 0 {
		r.toldNs = r.reached[next] - int64(usageLate)
		n, _ = slices.BinarySearchFunc(r.waiting, r.toldNs, func(u *borgpb.UsageRow, ns int64) int {
			if u.FromNs < ns {
				return -1
			}
			return 1
		})
	}
	out, r.waiting = r.waiting[:n:n], r.waiting[n:]
	return out
}

// taskName is the task of a row: "alice/web/3".
func taskName(u *borgpb.UsageRow) string { return fmt.Sprintf("%s/%d", u.Job, u.Index) }

// historySender sends messages of a bounded size.
type historySender struct {
	send  func(*borgrpc.HistoryResponse) error
	next  *borgrpc.HistoryResponse
	bytes int
	sent  bool
}

func (s *historySender) add(resp *borgrpc.HistoryResponse) error {
	// In a message pictures come before entries: later ones go with the next.
	if len(resp.Picture) > 0 && len(s.next.Entries) > 0 {
		if err := s.message(); err != nil {
			return err
		}
	}
	s.next.Entries, s.next.Usage = append(s.next.Entries, resp.Entries...), append(s.next.Usage, resp.Usage...)
	s.next.Gaps, s.next.Picture = append(s.next.Gaps, resp.Gaps...), append(s.next.Picture, resp.Picture...)
	if s.bytes += proto.Size(resp); s.bytes < maxHistoryBytes {
		return nil
	}
	return s.message()
}

// flush sends what is left, and at least one message.
func (s *historySender) flush() error {
	if proto.Size(s.next) == 0 && s.sent {
		return nil
	}
	return s.message()
}

func (s *historySender) message() error {
	err := s.send(s.next)
	s.next, s.bytes, s.sent = new(borgrpc.HistoryResponse), 0, true
	return err
}

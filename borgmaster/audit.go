package borgmaster

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"borg/borgmaster/audit"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// Records of what one replica alone knows of that are told; of those who have the
	// most, the newest.
	maxLocalTold = 10_000
	// Bytes of records in one message.
	maxAuditBytes = 1 << 20
	// How long another replica is waited for.
	auditTimeout = 3 * time.Second
)

// noteRefusal keeps that an op was refused before it reached the log.
func (m *Master) noteRefusal(ctx context.Context, op *borgpb.Op, r *borgpb.Refusal) {
	if m.cfg.Audit == nil {
		return
	}
	record := audit.Asked(op)
	m.note(record, door.Caller(ctx), r)
}

// noteDone keeps what somebody had this replica do that is no op.
func (m *Master) noteDone(ctx context.Context, verb, object string) {
	if m.cfg.Audit != nil {
		m.note(&borgpb.AuditRecord{Verb: verb, Object: object}, door.Caller(ctx), nil)
	}
}

// callRefused keeps that a call or a connection was refused.
func (m *Master) callRefused(r door.Refusal) {
	if m.cfg.Audit == nil {
		return
	}
	record := &borgpb.AuditRecord{Verb: "connect", Who: r.Addr}
	if r.Method != "" {
		record.Verb = r.Method[strings.LastIndexByte(r.Method, '/')+1:]
	}
	m.note(record, r.Caller, refusal(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "%s", status.Convert(r.Err).Message()))
}

func (m *Master) note(record *borgpb.AuditRecord, who identity.Name, r *borgpb.Refusal) {
	if who != (identity.Name{}) {
		record.Role, record.Who = door.Principal(who).GetRole(), who.ID
		record.Admin = who.Role == identity.User && m.hasAdmin(who.ID)
	}
	record.Refusal = r
	m.cfg.Audit.Local.Note(record)
}

// auditAPI serves AuditService.
type auditAPI struct {
	borgrpc.UnimplementedAuditServiceServer
	m *Master
}

// Audit tells who did what.
func (a *auditAPI) Audit(req *borgrpc.AuditRequest, stream borgrpc.AuditService_AuditServer) error {
	m := a.m
	ctx := stream.Context()
	if m.cfg.Audit == nil {
		return status.Error(codes.Unimplemented, "this replica keeps no audit")
	}
	if err := checkVerb(req.GetVerb()); err != nil {
		return err
	}
	kind := ofAudits
	if req.GetLocal() || isForwarded(ctx) {
		kind = ofLocalAudits
	}
	read, err := m.longRead(ctx, kind)
	if err != nil {
		return err
	}
	defer read.leave()
	w := m.walks(ctx)
	defer w.rest()
	caller := door.Caller(ctx)
	filter := auditFilter{AuditRequest: req, caller: caller.ID, all: m.isAdmin(caller)}
	out := &auditSender{walk: w, read: read, stream: stream, ops: req.GetOps()}
	if req.GetLocal() {
		for _, r := range m.ownLocal(w, filter) {
			if err := out.add(r); err != nil {
				return err
			}
		}
		return out.flush()
	}
	if err := m.readIndex(ctx); err != nil {
		out.silent = append(out.silent, &borgrpc.SilentReplica{Replica: m.cfg.Replica, Why: "what was done last may be missing: " + door.Reason(err)})
	}
	// Another replica asks for what this one has of the log.
	var dropped, local []*borgpb.AuditRecord
	if !isForwarded(ctx) {
		dropped, local = m.allLocal(w, req, filter, out)
		dropped = slices.Concat(filter.those(m.cfg.Audit.Log.Dropped()), dropped)
	}
	for _, d := range dropped {
		if err := out.add(d); err != nil {
			return err
		}
	}
	if req.GetLast() > 0 {
		out.last = int(req.GetLast())
	}
	err = m.tellAudit(filter, out, local)
	if err == nil {
		err = out.flush()
	}
	return m.grpcError(err)
}

// tellAudit tells what is of the log, and what is local where its time is among that.
func (m *Master) tellAudit(filter auditFilter, out *auditSender, local []*borgpb.AuditRecord) error {
	add := func(r *borgpb.AuditRecord) error {
		for len(local) > 0 && local[0].WallNs < r.WallNs {
			if err := out.add(local[0]); err != nil {
				return err
			}
			local = local[1:]
		}
		return out.add(r)
	}
	others := &auditFiller{m: m, walk: out.walk, filter: filter, tell: add}
	err := m.cfg.Audit.Log.Each(audit.Pick{Text: filter.text(), Step: out.walk.step}, func(r *borgpb.AuditRecord) error {
		switch {
		case !isForwarded(out.walk.ctx) && others.fills(r):
			return others.fill(r)
		case !filter.match(r):
			return nil
		}
		return add(r)
	})
	for ; err == nil && len(local) > 0; local = local[1:] {
		err = out.add(local[0])
	}
	return err
}

// ownLocal is what this replica alone knows of: first what it dropped of that.
func (m *Master) ownLocal(w *walk, filter auditFilter) []*borgpb.AuditRecord {
	defer w.rest()
	told := filter.those(m.cfg.Audit.Local.Dropped())
	err := m.cfg.Audit.Local.EachNewest(maxLocalTold, audit.Pick{Text: filter.text(), Step: w.step}, filter.match, func(r *borgpb.AuditRecord) error {
		told = append(told, r)
		return nil
	})
	if err != nil {
		told = append(told, &borgpb.AuditRecord{Replica: m.cfg.Replica, WallNs: time.Now().UnixNano(), Hole: &borgpb.AuditHole{Why: m.withoutPaths(err)}})
	}
	return told
}

// allLocal is what each replica alone knows of, by time, and what each dropped of
// that. Those that do not answer are named in out.
func (m *Master) allLocal(w *walk, req *borgrpc.AuditRequest, filter auditFilter, out *auditSender) (dropped, records []*borgpb.AuditRecord) {
	all := m.ownLocal(w, filter)
	req = proto.CloneOf(req)
	req.Local, req.Last = true, 0
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, member := range m.cfg.Members.Members() {
		if member.Id == m.cfg.Replica {
			continue
		}
		asking.Go(func() {
			theirs, err := m.localOf(w.ctx, member.Id, req)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, theirs...)
			if err != nil {
				out.silent = append(out.silent, &borgrpc.SilentReplica{Replica: member.Id, Why: door.Reason(err)})
			}
		})
	}
	asking.Wait()
	slices.SortFunc(out.silent, func(a, b *borgrpc.SilentReplica) int { return cmp.Compare(a.Replica, b.Replica) })
	slices.SortStableFunc(all, func(a, b *borgpb.AuditRecord) int {
		return cmp.Or(cmp.Compare(a.WallNs, b.WallNs), cmp.Compare(a.Replica, b.Replica))
	})
	for _, r := range all {
		if r.Drop != nil {
			dropped = append(dropped, r)
		} else {
			records = append(records, r)
		}
	}
	return dropped, records
}

// localOf asks another replica, in the caller's name, what it alone knows of.
func (m *Master) localOf(ctx context.Context, replica uint64, req *borgrpc.AuditRequest) ([]*borgpb.AuditRecord, error) {
	conn, err := m.replicaConn(replica)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(forwarding(ctx), auditTimeout)
	defer cancel()
	stream, err := borgrpc.NewAuditServiceClient(conn).Audit(ctx, req, grpc.WaitForReady(false))
	if err != nil {
		return nil, err
	}
	var records []*borgpb.AuditRecord
	for {
		resp, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return records, nil
		case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
			return records, lateAnswer(auditTimeout)
		case err != nil:
			return records, err
		}
		records = append(records, resp.GetRecords()...)
	}
}

// auditFilter picks the records that somebody asked for and may see.
type auditFilter struct {
	*borgrpc.AuditRequest
	caller string
	// The caller may see everything, not only what is his.
	all bool
}

// those returns the records that match.
func (f auditFilter) those(records []*borgpb.AuditRecord) []*borgpb.AuditRecord {
	return slices.DeleteFunc(records, func(r *borgpb.AuditRecord) bool { return !f.match(r) })
}

// verbsBeside are those of records that are of no op and of no call.
var verbsBeside = []string{"connect", "exec"}

// checkVerb refuses the beginning of no verb. Records are of ops, and of calls by the
// names of their methods.
func checkVerb(prefix string) error {
	begins := func(verb string) bool { return strings.HasPrefix(verb, prefix) }
	verbs := slices.Concat(audit.Verbs(), verbsBeside)
	if slices.ContainsFunc(verbs, begins) {
		return nil
	}
	known := false
	protoregistry.GlobalFiles.RangeFilesByPackage("borgrpc", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			for k := range f.Services().Get(i).Methods().Len() {
				known = known || begins(string(f.Services().Get(i).Methods().Get(k).Name()))
			}
		}
		return !known
	})
	if known {
		return nil
	}
	return status.Errorf(codes.InvalidArgument, "no verb begins with %q; verbs are %s, and calls by name, such as RemoveMember", prefix, strings.Join(verbs, ", "))
}

// text is in every record that the filter picks, but for holes and what was dropped; empty: nothing is in all of them.
func (f auditFilter) text() string {
	own := f.caller
	if f.all {
		own = ""
	}
	return cmp.Or(f.GetObject(), f.GetUser(), own)
}

func (f auditFilter) match(r *borgpb.AuditRecord) bool {
	switch {
	case f.GetSinceWallNs() != 0 && max(r.WallNs, r.LastWallNs) < f.GetSinceWallNs(), f.GetUntilWallNs() != 0 && r.WallNs >= f.GetUntilWallNs():
		return false
	case r.Hole != nil:
		return true
	case !f.all && !concerns(r, f.caller):
		return false
	case f.GetUser() != "" && !didBy(r, f.GetUser()):
		return false
	case r.Drop != nil:
		// What they were about is not known.
		return true
	// A name alone may be that of a job of the caller.
	case f.GetObject() != "" && !concerns(r, f.GetObject()) && !concerns(r, f.caller+"/"+f.GetObject()):
		return false
	case f.GetRefused() && r.Refusal == nil, f.GetPeopleOnly() && isProgram(r.Role):
		return false
	}
	return strings.HasPrefix(r.Verb, f.GetVerb())
}

// isProgram reports whether a role is of a part of the cell, which asks for things by itself. A
// task asks in the name of its user.
func isProgram(role borgpb.Role) bool {
	return role == borgpb.Role_ROLE_MASTER || role == borgpb.Role_ROLE_SCHEDULER || role == borgpb.Role_ROLE_BORGLET
}

// didBy says whether a user did it, or a task of his.
func didBy(r *borgpb.AuditRecord, user string) bool {
	return r.Role == borgpb.Role_ROLE_USER && r.Who == user || r.Role == borgpb.Role_ROLE_TASK && strings.HasPrefix(r.Who, user+"/")
}

// concerns says whether a record is about an object, about what belongs to a user
// of that name, or about what he did.
func concerns(r *borgpb.AuditRecord, object string) bool {
	return r.Object == object || strings.HasPrefix(r.Object, object+"/") || didBy(r, object)
}

// auditSender sends records in messages of a bounded size.
type auditSender struct {
	// Rests while a message is sent.
	walk   *walk
	read   *longRead
	stream borgrpc.AuditService_AuditServer
	// With the ops.
	ops bool
	// Only so many, the newest; zero: all, at once.
	last   int
	newest ring[*borgpb.AuditRecord]

	silent []*borgrpc.SilentReplica
	next   []*borgpb.AuditRecord
	bytes  int
	sent   bool
}

func (s *auditSender) add(r *borgpb.AuditRecord) error {
	if !s.ops {
		r.Op = nil
	}
	if s.last > 0 {
		s.newest.most = s.last
		s.newest.add(r)
		return nil
	}
	return s.send(r)
}

func (s *auditSender) send(r *borgpb.AuditRecord) error {
	s.next = append(s.next, r)
	if s.bytes += proto.Size(r); s.bytes < maxAuditBytes {
		return nil
	}
	return s.message()
}

// flush sends what is left, and at least one message.
func (s *auditSender) flush() error {
	for _, r := range s.newest.list() {
		if err := s.send(r); err != nil {
			return err
		}
	}
	if len(s.next) == 0 && s.sent {
		return nil
	}
	return s.message()
}

func (s *auditSender) message() error {
	s.walk.rest()
	err := s.read.sent(func() error { return s.stream.Send(&borgrpc.AuditResponse{Records: s.next, Silent: s.silent}) })
	s.next, s.silent, s.bytes, s.sent = nil, nil, 0, true
	return err
}

// ring keeps the newest of what is added.
type ring[T any] struct {
	most  int
	items []T
	added int
}

func (r *ring[T]) add(item T) {
	if len(r.items) < r.most {
		r.items = append(r.items, item)
	} else {
		r.items[r.added%r.most] = item
	}
	r.added++
}

// list is what is kept, oldest first.
func (r *ring[T]) list() []T {
	if len(r.items) < r.most || r.most == 0 {
		return r.items
	}
	at := r.added % r.most
	return append(slices.Clone(r.items[at:]), r.items[:at]...)
}

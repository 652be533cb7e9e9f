package borgmaster

import (
	"iter"
	"math"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// Watches of files at one replica, of one user and his tasks, and of all: each
	// may hold a message that its reader does not take.
	maxFileWatchesOfUser = 64
	maxFileWatches       = 1_000
	// A message of a watch is sent when it has so many bytes; the last file in it
	// may be larger than what is left.
	maxWatchBytes = 256 << 10
)

// fileWatch is one who watches.
type fileWatch struct {
	m    *Master
	req  *borgrpc.WatchFilesRequest
	user string
	// Log index of the state: what is of later ones is a change.
	index  uint64
	stream borgrpc.FileService_WatchFilesServer
}

// WatchFiles goes by this replica's events. It holds nothing for who does not
// read: he falls behind, until events are gone that he has not seen.
func (a *fileAPI) WatchFiles(req *borgrpc.WatchFilesRequest, stream borgrpc.FileService_WatchFilesServer) error {
	m, ctx := a.m, stream.Context()
	user, err := m.filesOf(door.Caller(ctx), req.GetUser())
	if err != nil {
		return err
	}
	if err := checkPrefix(req.GetPrefix()); err != nil {
		return err
	}
	leave, ok := m.fileWatchers.enter(door.Caller(ctx).User(), maxFileWatchesOfUser, maxFileWatches)
	if !ok {
		return door.FullHere("user %q has %d watches of files at replica %d, or all users together %d; end one, or ask another replica",
			door.Caller(ctx).User(), maxFileWatchesOfUser, m.cfg.Replica, maxFileWatches)
	}
	defer leave()
	if err := m.readIndex(ctx); err != nil {
		return m.grpcError(err)
	}
	// Before the state is looked at: what is later than that is in the ring behind it.
	from, _, _ := m.events.seek(math.MaxUint64, "")
	w := &fileWatch{m: m, req: req, user: user, stream: stream}
	state, err := w.state()
	if err != nil {
		return err
	}
	if err := w.send(state, true); err != nil {
		return err
	}
	var held []entryEvents
	for {
		more := m.events.more.Wait()
		var next uint64
		var ok bool
		held, next, ok = m.events.read(held, from, eventsPerMessage, user)
		if !ok {
			return status.Errorf(codes.Aborted, "this watch fell behind by more than %d events of the cell, or the cell was replaced; ask again", maxEvents)
		}
		changes := w.changes(inRange(held, from, next))
		clear(held)
		if len(changes) > 0 {
			if err := w.send(changes, false); err != nil {
				return err
			}
		}
		if next > from {
			from = next
			continue
		}
		select {
		case <-more:
		case <-m.stopping:
			return errStopping
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// fileAt is a file at a version that a watch has yet to send. Its content is looked up when
// the message with it is made: a client that does not read keeps none from being freed.
type fileAt struct {
	name    string
	version uint64
	// Of a change: its log index, when it was, and whether the file was deleted.
	index   uint64
	wallNs  int64
	deleted bool
}

// state is what there is.
func (w *fileWatch) state() (files []fileAt, err error) {
	err = w.m.viewMuch(w.stream.Context(), func(c *cell.Cell) error {
		w.index = c.Index()
		for f := range c.Files(w.user, w.req.GetPrefix()) {
			files = append(files, fileAt{name: f.Name(), version: f.Version(), wallNs: f.ChangedWallNs()})
		}
		return nil
	})
	return files, err
}

// changes are those of the events that are about what is watched.
func (w *fileWatch) changes(events iter.Seq[*cell.Event]) (changes []fileAt) {
	for e := range events {
		if e.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_FILE || e.Index <= w.index {
			continue
		}
		name, ok := strings.CutPrefix(e.Name, w.user+"/")
		if !ok || !cell.InPrefix(name, w.req.GetPrefix()) {
			continue
		}
		changes = append(changes, fileAt{name: name, version: e.Version, index: e.Index, wallNs: e.WallNs, deleted: e.Kind == borgpb.EventKind_EVENT_KIND_FILE_DELETE})
	}
	return changes
}

// show is a file as it is sent: as it is now, if it is still of that version.
func (w *fileWatch) show(c *cell.Cell, at *fileAt) *borgrpc.FileChange {
	one := &borgrpc.FileChange{
		File:    &borgrpc.FileStatus{User: w.user, Name: at.name, Version: at.version, ChangedWallNs: at.wallNs},
		Deleted: at.deleted, Index: at.index,
	}
	if at.deleted {
		return one
	}
	f := c.File(w.user, at.name)
	if f == nil || f.Version() != at.version {
		one.Superseded = true
		return one
	}
	one.File = fileStatus(f)
	if w.req.GetContent() {
		one.Content = f.Content()
	}
	return one
}

// next is the next message, of the first files that are to be sent.
func (w *fileWatch) next(list []fileAt) (changes []*borgrpc.FileChange) {
	w.m.cfg.Log.View(func(c *cell.Cell) {
		for bytes := 0; len(changes) < len(list) && bytes < maxWatchBytes; {
			one := w.show(c, &list[len(changes)])
			changes = append(changes, one)
			bytes += proto.Size(one)
		}
	})
	return changes
}

// send sends what there is in messages of a bounded size, each made when the one before it is
// written; a state of nothing too.
func (w *fileWatch) send(list []fileAt, state bool) error {
	for {
		// Meanwhile he may have been revoked.
		if err := w.m.believes(w.stream.Context()); err != nil {
			return err
		}
		changes := w.next(list)
		n := len(changes)
		resp := &borgrpc.WatchFilesResponse{Changes: changes, State: state, More: state && n < len(list), Index: w.index}
		if err := w.stream.Send(resp); err != nil {
			return err
		}
		changes, resp = nil, nil
		if err := w.m.written(w.stream.Context()); err != nil {
			return err
		}
		if list = list[n:]; len(list) == 0 {
			return nil
		}
	}
}

package borgmaster

import (
	"cmp"
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// Files in one answer: when the asker does not say, and at most.
	filesPerPage    = 1_000
	maxFilesPerPage = 10_000
	// Writes of files that a replica has under way, of one user and his tasks, and of
	// all: more are refused, so that nobody fills the queue of the log for others.
	maxFileWritesOfUser = 16
	maxFileWrites       = 64
)

// fileAPI serves FileService on every replica.
type fileAPI struct {
	borgrpc.UnimplementedFileServiceServer
	m *Master
}

// filesOf says whose files a call is about, and refuses whoever has no business
// with them. A task has that of its user's alone, be he an admin.
func (m *Master) filesOf(caller identity.Name, user string) (string, error) {
	user = cmp.Or(user, caller.User())
	if caller.User() == user {
		return user, nil
	}
	if caller.Role == identity.Task {
		return "", status.Errorf(codes.PermissionDenied, "you are %s: a task reads files of its own user, not those of %q", caller.Words(), user)
	}
	if m.isAdmin(caller) {
		return user, nil
	}
	return "", status.Errorf(codes.PermissionDenied, "the files of user %q are for that user, his tasks and admins: %s", user, m.needsAdmin(caller))
}

// checkPrefix wants what can be the beginning of names.
func checkPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	return refusalError(cell.CheckFileName(prefix))
}

func fileStatus(f *cell.File) *borgrpc.FileStatus {
	return &borgrpc.FileStatus{User: f.User(), Name: f.Name(), Version: f.Version(), SizeBytes: uint64(len(f.Content())), ChangedWallNs: f.ChangedWallNs()}
}

func (a *fileAPI) ReadFile(ctx context.Context, req *borgrpc.ReadFileRequest) (*borgrpc.ReadFileResponse, error) {
	user, err := a.m.filesOf(door.Caller(ctx), req.GetUser())
	if err != nil {
		return nil, err
	}
	if err := refusalError(cell.CheckFileName(req.GetName())); err != nil {
		return nil, err
	}
	if err := a.m.fresh(ctx, req.GetMode()); err != nil {
		return nil, err
	}
	resp := &borgrpc.ReadFileResponse{}
	a.m.cfg.Log.View(func(c *cell.Cell) {
		resp.Index = c.Index()
		if f := c.File(user, req.GetName()); f != nil {
			resp.File, resp.Content = fileStatus(f), f.Content()
		}
	})
	if resp.File == nil {
		return nil, status.Errorf(codes.NotFound, "user %s has no file %s", user, req.GetName())
	}
	if len(resp.Content) > largeOp {
		if err := a.m.encodeTurn(ctx); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

func (a *fileAPI) ListFiles(ctx context.Context, req *borgrpc.ListFilesRequest) (*borgrpc.ListFilesResponse, error) {
	user, err := a.m.filesOf(door.Caller(ctx), req.GetUser())
	if err != nil {
		return nil, err
	}
	if err := checkPrefix(req.GetPrefix()); err != nil {
		return nil, err
	}
	if err := a.m.fresh(ctx, req.GetMode()); err != nil {
		return nil, err
	}
	most := min(int(cmp.Or(req.GetLimit(), filesPerPage)), maxFilesPerPage)
	resp := &borgrpc.ListFilesResponse{}
	if err := a.m.viewMuch(ctx, func(c *cell.Cell) error {
		resp.Index = c.Index()
		for f := range c.Files(user, req.GetPrefix()) {
			if f.Name() <= req.GetAfter() {
				continue
			}
			if n := len(resp.Files); n == most {
				resp.NextAfter = resp.Files[n-1].Name
				return nil
			}
			resp.Files = append(resp.Files, fileStatus(f))
		}
		return nil
	}); err != nil {
		return nil, err
	}
	return resp, nil
}

// crowd counts what is under way by user, so that nobody takes the place of others.
type crowd struct {
	mu sync.Mutex
	// Guarded by mu.
	of  map[string]int
	all int
}

func (w *crowd) size() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}

// enter takes a place, unless that many of the user or of all are taken; leave
// gives it back.
func (w *crowd) enter(user string, mostOfUser, most int) (leave func(), ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[user] >= mostOfUser || w.all >= most {
		return nil, false
	}
	if w.of == nil {
		w.of = make(map[string]int)
	}
	w.of[user]++
	w.all++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.all--
		if w.of[user]--; w.of[user] == 0 {
			delete(w.of, user)
		}
	}, true
}

// enterWrite bounds the writes of files that a caller's user has under way; other
// ops pass. It goes by who asks, so that nobody can keep another one out.
func (m *Master) enterWrite(caller identity.Name, op *borgpb.Op) (leave func(), err error) {
	if op.GetWriteFile() == nil {
		return func() {}, nil
	}
	leave, ok := m.fileWriters.enter(caller.User(), maxFileWritesOfUser, maxFileWrites)
	if !ok {
		return nil, door.FullHere("user %q has %d writes of files under way at replica %d, or all users together %d; try again when one is done",
			caller.User(), maxFileWritesOfUser, m.cfg.Replica, maxFileWrites)
	}
	return leave, nil
}

package client

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// WriteFile gives a small file of a user its content, whole, and returns its
// version. ifVersion, unless it is nil, is the version that the file must have, 0 if
// there must be none; otherwise the error is a *RefusedError of the kind conflict.
func (c *Client) WriteFile(ctx context.Context, user, name string, content []byte, ifVersion *uint64) (version uint64, err error) {
	res, err := c.Mutate(ctx, &borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: user, Name: name, Content: content, IfVersion: ifVersion}}})
	return res.GetVersion(), err
}

// DeleteFile forgets a file, if it has that version unless ifVersion is nil.
func (c *Client) DeleteFile(ctx context.Context, user, name string, ifVersion *uint64) error {
	_, err := c.Mutate(ctx, &borgpb.Op{Op: &borgpb.Op_DeleteFile{DeleteFile: &borgpb.DeleteFile{User: user, Name: name, IfVersion: ifVersion}}})
	return err
}

// ReadFile returns a file; a *NotFoundError when there is none.
func (c *Client) ReadFile(ctx context.Context, req *borgrpc.ReadFileRequest) (*borgrpc.ReadFileResponse, error) {
	return tryFile(ctx, c, "read file "+fileWords(req.User, req.Name), func(ctx context.Context, f borgrpc.FileServiceClient) (*borgrpc.ReadFileResponse, error) {
		return f.ReadFile(ctx, req)
	})
}

// ListFiles asks for page after page of the files of a user, without contents.
func (c *Client) ListFiles(ctx context.Context, user, prefix string) (all []*borgrpc.FileStatus, err error) {
	req := &borgrpc.ListFilesRequest{User: user, Prefix: prefix}
	for {
		page, err := tryFile(ctx, c, "list files", func(ctx context.Context, f borgrpc.FileServiceClient) (*borgrpc.ListFilesResponse, error) {
			return f.ListFiles(ctx, req)
		})
		if err != nil {
			return nil, err
		}
		all = append(all, page.Files...)
		// A page that does not move on would be asked for without end.
		if page.NextAfter == "" || page.NextAfter == req.After {
			return all, nil
		}
		req = &borgrpc.ListFilesRequest{User: user, Prefix: prefix, After: page.NextAfter}
	}
}

// WatchFiles calls f with the files as they are, once, and then with each change,
// until ctx ends or f returns an error. When the replica that sends them goes away,
// or we are too slow for it, what has changed meanwhile is told as changes: of a file
// that was written more than once the last, and of one that is gone a deletion
// without a version. Nothing is told twice.
func (c *Client) WatchFiles(ctx context.Context, req *borgrpc.WatchFilesRequest, f func(state bool, changes []*borgrpc.FileChange) error) error {
	w := watched{f: f}
	for {
		err := c.stream(ctx, "watch files", true, func(ctx context.Context, r *replica, alive func()) error {
			s, err := borgrpc.NewFileServiceClient(r.conn).WatchFiles(ctx, req)
			w.parts = nil
			for err == nil {
				var resp *borgrpc.WatchFilesResponse
				if resp, err = s.Recv(); err != nil {
					break
				}
				alive()
				if err := w.take(resp); err != nil {
					return &stopError{err}
				}
			}
			if status.Code(err) == codes.Aborted {
				return nil
			}
			return endOf(err)
		})
		if err != nil || ctx.Err() != nil {
			return err
		}
		wait(ctx, maxPause/4)
	}
}

// watched is what a watcher was told so far.
type watched struct {
	f func(state bool, changes []*borgrpc.FileChange) error
	// Versions by name; nil: nothing was told yet.
	told map[string]uint64
	// The state, as far as it has come.
	parts []*borgrpc.FileChange
}

func (w *watched) take(resp *borgrpc.WatchFilesResponse) error {
	changes := resp.Changes
	if resp.State {
		if w.parts = append(w.parts, changes...); resp.More {
			return nil
		}
		changes = w.parts
		if w.told != nil {
			changes = w.since(w.parts)
		}
	}
	first := w.told == nil
	if first {
		w.told = make(map[string]uint64)
	}
	for _, one := range changes {
		if name := one.File.GetName(); one.Deleted {
			delete(w.told, name)
		} else {
			w.told[name] = one.File.GetVersion()
		}
	}
	if len(changes) == 0 && !first {
		return nil
	}
	return w.f(first, changes)
}

// since is what a later state says that was not told, by version.
func (w *watched) since(state []*borgrpc.FileChange) (changes []*borgrpc.FileChange) {
	there := make(map[string]bool, len(state))
	for _, one := range state {
		there[one.File.GetName()] = true
		if w.told[one.File.GetName()] != one.File.GetVersion() {
			changes = append(changes, one)
		}
	}
	slices.SortFunc(changes, func(a, b *borgrpc.FileChange) int { return cmp.Compare(a.File.GetVersion(), b.File.GetVersion()) })
	for _, name := range slices.Sorted(maps.Keys(w.told)) {
		if !there[name] {
			changes = append(changes, &borgrpc.FileChange{File: &borgrpc.FileStatus{Name: name}, Deleted: true})
		}
	}
	return changes
}

// Resolve returns one page of where the tasks of a job are; a *NotFoundError when
// there is no such job or task.
func (c *Client) Resolve(ctx context.Context, req *borgrpc.ResolveRequest) (*borgrpc.ResolveResponse, error) {
	return tryEach(ctx, c, "resolve "+fileWords(req.User, req.Job), tryTimeout, func(ctx context.Context, r *replica) (*borgrpc.ResolveResponse, error) {
		return borgrpc.NewNameServiceClient(r.conn).Resolve(ctx, req)
	})
}

func fileWords(user, name string) string { return strings.TrimPrefix(user+"/"+name, "/") }

// tryFile is try for what FileService answers.
func tryFile[R any](ctx context.Context, c *Client, what string, f func(context.Context, borgrpc.FileServiceClient) (R, error)) (R, error) {
	return tryEach(ctx, c, what, tryTimeout, func(ctx context.Context, r *replica) (R, error) {
		return f(ctx, borgrpc.NewFileServiceClient(r.conn))
	})
}

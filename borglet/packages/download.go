package packages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"borg/borglet"
)

// errWrong: what came is not what was asked for.
var errWrong = errors.New("it is thrown away")

// download makes sure that a blob is there, from the first source that has it.
func (s *Store) download(ctx context.Context, r *route, of content) error {
	unlock, err := s.keys.lock(ctx, "blob "+string(of.Digest))
	if err != nil {
		return err
	}
	defer unlock()
	s.mu.Lock()
	_, there := s.blobs[of.Digest]
	have := s.partials[of.Digest]
	s.mu.Unlock()
	if there {
		return nil
	}
	partial := &work{s: s}
	defer partial.done()
	partial.on(partialKind, of.Digest)
	if err := s.room(max(of.Bytes-have, 0)); err != nil {
		return err
	}
	now := r.now()
	if now.origin && len(now.list) == 0 {
		return errors.New("this machine has nowhere to bring packages from; start its borglet with --package-source")
	}
	var errs []error
	for _, source := range now.list {
		err := s.ask(ctx, r, source, of)
		if err == nil {
			r.hope()
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", source, err))
		if ctx.Err() != nil {
			break
		}
	}
	if !now.origin {
		errs = append(errs, errWait)
	}
	return errors.Join(errs...)
}

// ask brings a blob from one source, and remembers of another machine how that went
// wrong.
func (s *Store) ask(ctx context.Context, r *route, source Source, of content) error {
	s.mu.Lock()
	begun := s.partials[of.Digest] > 0
	s.mu.Unlock()
	err := s.downloadFrom(ctx, source, of)
	if begun && errors.Is(err, errWrong) {
		// It may be others who gave what it went on with. All of it is its own now.
		err = s.downloadFrom(ctx, source, of)
	}
	if p, is := source.(*peer); is && err != nil && ctx.Err() == nil {
		s.shunned.note(p.addr, r.image, err, time.Now())
	}
	return err
}

// downloadFrom goes on with what is there of a blob, checks all of it, and gives
// it its name.
func (s *Store) downloadFrom(ctx context.Context, source Source, of content) error {
	path := s.path(partialDir, of.Digest.hex())
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	have, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	most := of.Bytes
	if most == 0 {
		// A manifest of which nobody said the size is small enough to begin anew.
		have, most = 0, maxManifestBytes
	}
	if have > most {
		have = 0
	}
	if have < most {
		err = s.transfer(ctx, source, of, f, have, most)
	}
	size, sizeErr := f.Seek(0, io.SeekEnd)
	s.mu.Lock()
	s.partials[of.Digest] = size
	s.mu.Unlock()
	if err = errors.Join(err, sizeErr); err != nil {
		return err
	}
	if of.Bytes != 0 && size != of.Bytes {
		// What came is gone on with.
		return fmt.Errorf("%d of its %d bytes came: %w", size, of.Bytes, io.ErrUnexpectedEOF)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	got, _, err := hashOf(f)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if got != of.Digest {
		return errors.Join(fmt.Errorf("what came is %s, and not %s; %w", got, of.Digest, errWrong), s.throw(drop{partialKind, of.Digest}))
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(path, s.path(blobsDir, of.Digest.hex())); err != nil {
		return err
	}
	delete(s.partials, of.Digest)
	s.blobs[of.Digest] = size
	return borglet.SyncDir(s.path(blobsDir))
}

// transfer reads from the source to the end of f.
func (s *Store) transfer(ctx context.Context, source Source, of content, f *os.File, have, most int64) error {
	r, from, err := source.Open(ctx, of, have)
	if err != nil {
		return err
	}
	defer r.Close()
	if from != 0 && from != have {
		return fmt.Errorf("it begins at byte %d, and not at %d", from, have)
	}
	if err := f.Truncate(from); err != nil {
		return err
	}
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(r, most-from+1))
	s.mu.Lock()
	s.stats.fetchedBytes += n
	if _, is := source.(*peer); is {
		s.stats.peerBytes += n
	}
	if from > 0 {
		s.stats.resumed++
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		return err
	case from+n > most:
		return errors.Join(fmt.Errorf("more than %d bytes came; %w", most, errWrong), f.Truncate(0))
	}
	return nil
}

// keys lets one at a time work on what has a name.
type keys struct {
	mu sync.Mutex
	// held has a channel for each name that is worked on, closed at the end.
	// Guarded by mu.
	held map[string]chan struct{}
}

func (k *keys) lock(ctx context.Context, name string) (unlock func(), err error) {
	for {
		k.mu.Lock()
		busy, held := k.held[name]
		if !held {
			if k.held == nil {
				k.held = map[string]chan struct{}{}
			}
			done := make(chan struct{})
			k.held[name] = done
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				delete(k.held, name)
				k.mu.Unlock()
				close(done)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

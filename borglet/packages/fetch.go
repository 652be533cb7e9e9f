package packages

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

// bring makes sure that all of an image is there.
func (s *Store) bring(ctx context.Context, turn borglet.Turn, d Digest, login borglet.PackageLogin) (*image, error) {
	if i, ok := s.use(d); ok {
		return i, nil
	}
	unlock, err := s.keys.lock(ctx, "image "+string(d))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if i, ok := s.use(d); ok {
		return i, nil
	}
	r := s.newRoute(d)
	if err := r.logIn(ctx, login); err != nil {
		return nil, err
	}
	i, err := s.attempt(ctx, turn, r)
	for errors.Is(err, errWait) && ctx.Err() == nil {
		i, err = s.attempt(ctx, turn, r)
	}
	if err != nil {
		return nil, err
	}
	if err := writeJSON(s.path(imagesDir, d.hex()), i); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.images[d], s.stale = i, true
	s.stats.fetched++
	s.mu.Unlock()
	s.cfg.Log.Info("a package is here", "digest", d, "layers", len(i.Layers))
	i, _ = s.use(d)
	return i, nil
}

// attempt brings an image once there is somebody to ask, and takes a turn for as long
// as it does.
func (s *Store) attempt(ctx context.Context, turn borglet.Turn, r *route) (*image, error) {
	if err := r.await(ctx); err != nil {
		return nil, err
	}
	giveBack, err := s.fetches.Take(ctx, turn)
	if err != nil {
		return nil, err
	}
	defer giveBack()
	return s.fetch(ctx, r)
}

// fetch brings manifest, configuration and layers, and unpacks these.
func (s *Store) fetch(ctx context.Context, r *route) (*image, error) {
	i := &image{digest: r.image}
	w := &work{s: s, r: r}
	defer w.done()
	m, err := s.manifest(ctx, w, i, blob{Digest: r.image})
	if err != nil {
		return nil, err
	}
	config, err := s.small(ctx, w, i, content{blob: m.config})
	if err != nil {
		return nil, fmt.Errorf("its configuration: %w", err)
	}
	if err := checkPlatform(config, s.cfg.Arch); err != nil {
		return nil, err
	}
	for n, l := range m.layers {
		key := layerKey(l.Digest, i.Layers)
		w.on(layerKind, l.Digest)
		w.on(layerKind, key)
		key, err := s.layer(ctx, r, l, key, i.Layers)
		if err != nil {
			return nil, fmt.Errorf("layer %d of %d (%s): %w", n+1, len(m.layers), l.Digest, err)
		}
		i.Layers, i.Packed = append(i.Layers, key), append(i.Packed, l.Digest)
	}
	// What is there may be above the limit by what was unpacked last.
	if err := s.room(0); err != nil {
		return nil, err
	}
	return i, nil
}

// manifest reads the manifest of an image, through the indexes around it.
func (s *Store) manifest(ctx context.Context, w *work, i *image, of blob) (*manifest, error) {
	for range maxManifests {
		text, err := s.small(ctx, w, i, content{blob: of, manifest: true})
		if err != nil {
			return nil, fmt.Errorf("its manifest: %w", err)
		}
		var m *manifest
		if m, of, err = readManifest(text, s.cfg.Arch); err != nil || m != nil {
			return m, err
		}
	}
	return nil, fmt.Errorf("its index is within others, more than %d deep", maxManifests-1)
}

// small brings a blob that is read whole.
func (s *Store) small(ctx context.Context, w *work, i *image, of content) ([]byte, error) {
	w.on(blobKind, of.Digest)
	i.Small = append(i.Small, of.Digest)
	if err := s.download(ctx, w.r, of); err != nil {
		return nil, err
	}
	return os.ReadFile(s.path(blobsDir, of.Digest.hex()))
}

// work is what an image that is being brought keeps from being thrown away.
type work struct {
	s *Store
	// On which way it comes; nil for parts of it.
	r    *route
	list []drop
}

func (w *work) on(k kind, d Digest) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.active[drop{k, d}]++
	w.list = append(w.list, drop{k, d})
}

func (w *work) done() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	for _, one := range w.list {
		if w.s.active[one]--; w.s.active[one] == 0 {
			delete(w.s.active, one)
		}
	}
}

// layerKey is what a layer is kept under that depends on those below it.
func layerKey(layer Digest, lower []Digest) Digest {
	h := sha256.New()
	for _, d := range lower {
		fmt.Fprintln(h, d)
	}
	fmt.Fprintln(h, "below", layer)
	return Digest("sha256:" + hex.EncodeToString(h.Sum(nil)))
}

// layer makes sure that a layer is there, unpacked, and returns what it is kept under: its
// own digest if it is the same on top of any others, else key. All others who want it wait.
func (s *Store) layer(ctx context.Context, r *route, l blob, key Digest, lower []Digest) (Digest, error) {
	unlock, err := s.keys.lock(ctx, "layer "+string(l.Digest))
	if err != nil {
		return "", err
	}
	defer unlock()
	s.mu.Lock()
	_, alone := s.layers[l.Digest]
	_, there := s.layers[key]
	s.mu.Unlock()
	switch {
	case alone:
		return l.Digest, nil
	case there:
		return key, nil
	}
	packed := &work{s: s}
	defer packed.done()
	packed.on(blobKind, l.Digest)
	if err := s.download(ctx, r, content{blob: l}); err != nil {
		return "", err
	}
	return s.unpack(l, key, lower)
}

// unpack unpacks a layer beside its place and moves it there whole.
func (s *Store) unpack(l blob, key Digest, lower []Digest) (Digest, error) {
	temp, err := os.MkdirTemp(s.path(unpackingDir), l.Digest.hex()[:16]+"-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	tree := filepath.Join(temp, treeDir)
	// The task sees this directory, which others made than it: all may look in.
	if err := errors.Join(os.Chmod(temp, 0o711), os.Mkdir(tree, 0o755)); err != nil {
		return "", err
	}
	f, err := os.Open(s.path(blobsDir, l.Digest.hex()))
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	packed := io.TeeReader(f, hash)
	var grown int64
	defer func() {
		s.mu.Lock()
		s.growing -= grown
		s.mu.Unlock()
	}()
	is, err := unpack(packed, tree, boundsOf(l.Bytes, func(more int64) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.roomLocked(more); err != nil {
			return err
		}
		s.growing += more
		grown += more
		return nil
	}), s.trees(lower))
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(io.Discard, packed); err != nil {
		return "", err
	}
	if got := Digest("sha256:" + hex.EncodeToString(hash.Sum(nil))); got != l.Digest {
		// The disk has changed it since it came. It is brought again.
		s.mu.Lock()
		defer s.mu.Unlock()
		return "", errors.Join(fmt.Errorf("what was kept of it has become %s", got), s.throw(drop{blobKind, l.Digest}))
	}
	if err := writeJSON(filepath.Join(temp, aboutFile), about{is.bytes, is.entries}); err != nil {
		return "", err
	}
	if err := syncAll(temp); err != nil {
		return "", err
	}
	if is.alone {
		key = l.Digest
	}
	if err := os.Rename(temp, s.path(layersDir, key.hex())); err != nil {
		return "", err
	}
	if err := borglet.SyncDir(s.path(layersDir)); err != nil {
		return "", err
	}
	s.mu.Lock()
	s.layers[key] = is.bytes
	s.mu.Unlock()
	return key, nil
}

// syncAll syncs the file system that dir is on: a layer has too many files to sync
// each.
func syncAll(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

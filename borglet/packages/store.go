package packages

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"time"

	"borg/borglet"
)

// Config is what a Store is made with.
type Config struct {
	// Dir is the store's own directory. Absolute.
	Dir string
	// Sources are asked in this order.
	Sources []Source
	// Peers asks other machines, each at the address that masters tell; it shows who
	// this machine is, and talks to machines of the cell alone. Nil: none is asked.
	Peers *http.Client
	// Patience is how long a machine waits for one that has what it needs, while
	// nothing comes, before it asks Sources although it is not its turn; twice that at
	// most. Zero: two minutes.
	Patience time.Duration
	// ServeBytesPerS bounds what other machines are sent, all together; zero: not.
	ServeBytesPerS int64
	// LimitBytes bounds what is kept on disk, in use or not.
	LimitBytes int64
	// Arch is the kind of processor that images are chosen for; empty: this one's.
	Arch string
	Log  *slog.Logger
}

// Validate says what is wrong with it.
func (c *Config) Validate() error {
	switch {
	case c.Log == nil || !filepath.IsAbs(c.Dir):
		return errors.New("packages: Dir must be absolute, and Log be given")
	case c.Patience < 0 || c.ServeBytesPerS < 0:
		return errors.New("packages: Patience and ServeBytesPerS must not be below zero")
	case c.LimitBytes < minLimitBytes:
		return fmt.Errorf("%d bytes for packages; want at least %d", c.LimitBytes, minLimitBytes)
	}
	return nil
}

// Store is the packages of a machine. Its methods may be called from several
// goroutines.
type Store struct {
	cfg     Config
	root    string
	keys    keys
	fetches *borglet.Turns
	shunned shunned

	mu sync.Mutex
	// Guarded by mu from here. images are those of which all is there.
	images map[Digest]*image
	// refs are the digests that holders need.
	refs map[string][]Digest
	// Bytes on disk.
	blobs, layers, partials map[Digest]int64
	// active counts who is at work on something.
	active map[drop]int
	// growing is the room of layers that are being unpacked.
	growing int64
	// advice is what masters said last of packages that are wanted here; advised is
	// closed when they say something else.
	advice  map[string]borglet.PackageAdvice
	advised chan struct{}
	// whole is the last answer of Whole, to wholeLimit; stale when it may be another
	// by now.
	whole      []string
	wholeLimit int
	stale      bool
	stats      counts
}

// counts are kept since the start.
type counts struct {
	fetchedBytes, peerBytes, servedBytes, fetched, resumed, failed, dropped int64
}

// image is a file in images.
type image struct {
	// Small is its manifest, the index around it, its configuration.
	Small []Digest `json:"small"`
	// Layers are what they are kept under, the lowest first.
	Layers []Digest `json:"layers"`
	// Packed are the digests under which they came, in the same order.
	Packed []Digest `json:"packed"`

	digest Digest
	usedNs int64
}

// about is a layer's file.
type about struct {
	Bytes   int64 `json:"bytes"`
	Entries int   `json:"entries"`
}

const (
	blobsDir     = "blobs/sha256"
	partialDir   = "partial"
	unpackingDir = "unpacking"
	layersDir    = "layers"
	imagesDir    = "images"
	refsDir      = "refs"
	treeDir      = "tree"
	aboutFile    = "about"
)

// Open opens or makes a store. What an earlier one left half done is thrown away,
// but for downloads.
func Open(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Arch, cfg.Patience = cmp.Or(cfg.Arch, runtime.GOARCH), cmp.Or(cfg.Patience, defaultPatience)
	s := &Store{
		cfg: cfg, root: cfg.Dir, fetches: borglet.NewTurns(parallelFetches, parallelFetches-1),
		images: map[Digest]*image{}, refs: map[string][]Digest{}, active: map[drop]int{},
		blobs: map[Digest]int64{}, layers: map[Digest]int64{}, partials: map[Digest]int64{},
		advised: make(chan struct{}), stale: true,
	}
	if cfg.Peers != nil {
		// A machine serves what it has, and sends nobody elsewhere.
		peers := *cfg.Peers
		peers.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		s.cfg.Peers = &peers
	}
	if err := os.RemoveAll(s.path(unpackingDir)); err != nil {
		return nil, fmt.Errorf("open packages: %w", err)
	}
	for _, dir := range []string{blobsDir, partialDir, unpackingDir, layersDir, imagesDir, refsDir} {
		if err := os.MkdirAll(s.path(dir), 0o711); err != nil {
			return nil, fmt.Errorf("open packages: %w", err)
		}
	}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("open packages: %w", err)
	}
	return s, nil
}

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.root}, parts...)...)
}

// load reads what is there. Nothing of it is needed by who can fetch it again, so
// that what cannot be read is thrown away.
func (s *Store) load() error {
	read := func(dir string, of map[Digest]int64, size func(path string) (int64, error)) error {
		entries, err := os.ReadDir(s.path(dir))
		if err != nil {
			return err
		}
		for _, e := range entries {
			d, err := ParseDigest("sha256:" + e.Name())
			var n int64
			if err == nil {
				n, err = size(s.path(dir, e.Name()))
			}
			if err != nil {
				s.cfg.Log.Warn("thrown away, since it cannot be read", "path", s.path(dir, e.Name()), "err", err)
				if err := os.RemoveAll(s.path(dir, e.Name())); err != nil {
					return err
				}
				continue
			}
			of[d] = n
		}
		return nil
	}
	file := func(path string) (int64, error) {
		info, err := os.Lstat(path)
		if err != nil {
			return 0, err
		}
		return info.Size(), nil
	}
	layer := func(path string) (int64, error) {
		var a about
		err := readJSON(filepath.Join(path, aboutFile), &a)
		return a.Bytes, err
	}
	if err := errors.Join(read(blobsDir, s.blobs, file), read(partialDir, s.partials, file), read(layersDir, s.layers, layer)); err != nil {
		return err
	}
	found := map[Digest]int64{}
	err := read(imagesDir, found, func(path string) (int64, error) {
		i, err := s.loadImage(path)
		if err == nil {
			s.images[i.digest] = i
		}
		return 0, err
	})
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(s.path(refsDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		var list []Digest
		if err := readJSON(s.path(refsDir, e.Name()), &list); err != nil {
			s.cfg.Log.Warn("a reference to packages cannot be read; its copy makes it anew when it starts", "holder", e.Name(), "err", err)
			continue
		}
		s.refs[e.Name()] = list
	}
	return nil
}

func (s *Store) loadImage(path string) (*image, error) {
	i := &image{digest: Digest("sha256:" + filepath.Base(path))}
	if err := readJSON(path, i); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	i.usedNs = info.ModTime().UnixNano()
	if len(i.Packed) != len(i.Layers) {
		return nil, errors.New("it is not said under which digests its layers came")
	}
	for _, l := range i.Layers {
		if _, there := s.layers[l]; !there {
			return nil, fmt.Errorf("its layer %s is not there", l)
		}
	}
	return i, nil
}

// holderPattern: a holder becomes a file name.
var holderPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,254}$`)

// Hold brings packages to the machine and keeps them until Drop. It returns for
// each the directories that make it up, the lowest first. What is there already
// costs nothing.
// login says who the machine is to registries meanwhile; it is not kept.
func (s *Store) Hold(ctx context.Context, turn borglet.Turn, holder string, digests []string, login borglet.PackageLogin) ([][]string, error) {
	list := make([]Digest, len(digests))
	for n, text := range digests {
		var err error
		if list[n], err = ParseDigest(text); err != nil {
			return nil, err
		}
	}
	if err := s.refer(holder, list); err != nil {
		return nil, err
	}
	trees := make([][]string, len(list))
	for n, d := range list {
		i, err := s.bring(ctx, turn, d, login)
		if err != nil {
			s.mu.Lock()
			s.stats.failed++
			s.mu.Unlock()
			return nil, fmt.Errorf("package %s: %w", d, err)
		}
		trees[n] = s.trees(i.Layers)
	}
	return trees, nil
}

// trees are the directories of layers.
func (s *Store) trees(layers []Digest) (list []string) {
	for _, l := range layers {
		list = append(list, s.path(layersDir, l.hex(), treeDir))
	}
	return list
}

// refer writes a reference before what it keeps is looked for.
func (s *Store) refer(holder string, list []Digest) error {
	if !holderPattern.MatchString(holder) {
		return fmt.Errorf("holder of packages %q: want a file name", holder)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(s.refs[holder], list) {
		return nil
	}
	if err := writeJSON(s.path(refsDir, holder), list); err != nil {
		return err
	}
	s.refs[holder] = list
	return nil
}

// Drop ends a reference; one that is not there is ended.
func (s *Store) Drop(holder string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.refs[holder]; !there {
		return nil
	}
	if err := os.Remove(s.path(refsDir, holder)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("end the reference to packages: %w", err)
	}
	delete(s.refs, holder)
	return nil
}

// Keep ends the references of all other holders: their copies are gone.
func (s *Store) Keep(holders []string) error {
	s.mu.Lock()
	all := slices.Sorted(maps.Keys(s.refs))
	s.mu.Unlock()
	var errs []error
	for _, h := range all {
		if !slices.Contains(holders, h) {
			errs = append(errs, s.Drop(h))
		}
	}
	return errors.Join(errs...)
}

// use returns an image of which all is there, and notes that it was wanted.
func (s *Store) use(d Digest) (*image, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.images[d]
	if i == nil {
		return nil, false
	}
	now := time.Now()
	i.usedNs, s.stale = now.UnixNano(), true
	if err := os.Chtimes(s.path(imagesDir, d.hex()), now, now); err != nil {
		s.cfg.Log.Warn("when a package was wanted cannot be noted", "digest", d, "err", err)
	}
	return i, true
}

// facts are what there is to throw away. The caller holds mu.
func (s *Store) facts() *facts {
	f := &facts{blobs: s.blobs, layers: s.layers, partials: s.partials, active: map[drop]bool{}, growing: s.growing}
	for d := range s.active {
		f.active[d] = true
	}
	held := s.held()
	for _, i := range s.images {
		f.images = append(f.images, imageFacts{i.digest, i.Small, i.Layers, i.Packed, i.usedNs, held[i.digest]})
	}
	return f
}

// held are the digests that anybody refers to. The caller holds mu.
func (s *Store) held() map[Digest]bool {
	held := map[Digest]bool{}
	for _, list := range s.refs {
		for _, d := range list {
			held[d] = true
		}
	}
	return held
}

// room throws away what is needed to have room for needBytes, or says that there
// is none.
func (s *Store) room(needBytes int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roomLocked(needBytes)
}

func (s *Store) roomLocked(needBytes int64) error {
	f := s.facts()
	if held := f.heldBytes(); needBytes > s.cfg.LimitBytes-held {
		return fmt.Errorf("there is no room: it needs %d bytes more, and of %d for packages %d are in use; give the borglet more with --package-bytes",
			needBytes, s.cfg.LimitBytes, held)
	}
	for _, one := range f.plan(s.cfg.LimitBytes - needBytes) {
		if err := s.throw(one); err != nil {
			return err
		}
	}
	return nil
}

// throw does one step of a plan. The caller holds mu.
func (s *Store) throw(one drop) error {
	dir, of := layersDir, s.layers
	switch one.kind {
	case partialKind:
		dir, of = partialDir, s.partials
	case blobKind:
		dir, of = blobsDir, s.blobs
	case imageKind:
		if err := removeSynced(s.path(imagesDir), one.digest.hex()); err != nil {
			return fmt.Errorf("make room: %w", err)
		}
		delete(s.images, one.digest)
		s.stale = true
		s.stats.dropped++
		s.cfg.Log.Info("a package was thrown away to make room", "digest", one.digest)
		return nil
	}
	if one.kind == layerKind {
		// It goes from its place in one step.
		trash := s.path(unpackingDir, "gone-"+one.digest.hex())
		if err := os.Rename(s.path(dir, one.digest.hex()), trash); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make room: %w", err)
		}
		delete(of, one.digest)
		if err := os.RemoveAll(trash); err != nil {
			return fmt.Errorf("make room: %w", err)
		}
		return nil
	}
	if err := os.Remove(s.path(dir, one.digest.hex())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("make room: %w", err)
	}
	delete(of, one.digest)
	return nil
}

// State says how the store stands.
func (s *Store) State() borglet.PackageState {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.facts()
	state := borglet.PackageState{
		Held: len(s.held()), Bytes: f.bytes(), HeldBytes: f.heldBytes(), LimitBytes: s.cfg.LimitBytes,
		Fetched: s.stats.fetched, FetchedBytes: s.stats.fetchedBytes, PeerBytes: s.stats.peerBytes, ServedBytes: s.stats.servedBytes,
		Resumed: s.stats.resumed, Failed: s.stats.failed, Dropped: s.stats.dropped,
	}
	for _, d := range slices.Sorted(maps.Keys(s.images)) {
		state.Digests = append(state.Digests, string(d))
	}
	for _, source := range s.cfg.Sources {
		state.Sources = append(state.Sources, source.String())
	}
	return state
}

// Whole lists the digests of what is there whole, sorted: of more than limit those that
// were wanted last. The same slice comes back for as long as it is the same.
func (s *Store) Whole(limit int) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stale && s.wholeLimit == limit {
		return s.whole
	}
	s.stale, s.wholeLimit = false, limit
	list := slices.SortedFunc(maps.Values(s.images), func(a, b *image) int {
		return cmp.Or(cmp.Compare(b.usedNs, a.usedNs), cmp.Compare(a.digest, b.digest))
	})
	var whole []string
	for _, i := range list[:min(limit, len(list))] {
		whole = append(whole, string(i.digest))
	}
	slices.Sort(whole)
	if !slices.Equal(whole, s.whole) {
		s.whole = whole
	}
	return s.whole
}

func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// writeJSON replaces a file whole, synced.
func writeJSON(path string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return borglet.WriteSynced(path, append(text, '\n'))
}

func removeSynced(dir, name string) error {
	if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return borglet.SyncDir(dir)
}

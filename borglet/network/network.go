// Package network gives tasks networks of their own: a name space with an address in
// it, by the machine's CNI plugins.
//
// # Contract
//
// A network has a key, and is there from Make to Remove, whoever is killed meanwhile:
//
//   - Its name space is held by a mount at <run-dir>/net/<key>, and by no process.
//   - <dir>/networks/<key>.json is written and synced before the first plugin is
//     started, and goes after the last: a network that is half made is one that is to
//     be removed. It holds the configuration that the plugins were given, so that they
//     undo what they did, whatever is in the machine's configuration by then.
//   - A network that is being removed is written down as not whole before the first plugin
//     is started.
//   - Plugins go on when the borglet is killed. The next one waits until they have
//     ended before it starts any, and for nothing else.
//
// After a reboot the name spaces are gone, and what plugins keep on disk (leases of
// addresses) may not be: such a network is removed before it is made anew.
//
// It knows nothing of tasks: whose a network is, and for how long, is the agent's to
// say.
package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"borg/borglet"
)

const (
	// DefaultConf is where the machine's configuration is looked for.
	DefaultConf = "/etc/cni/net.d"
	// device is what the network is called in its name space, beside lo.
	device = "eth0"
	// pluginsBound is how long all plugins of one network may take together.
	pluginsBound = 30 * time.Second
	// pluginsPatience is how long plugins that an earlier borglet started are waited
	// for; each of them is bounded by the same.
	pluginsPatience = 35 * time.Second
	// maxKeyBytes bounds keys, which become names of files.
	maxKeyBytes = 200
	recordEnd   = ".json"
)

// DefaultBins is where plugins are looked for: Debian's place, and most others'.
func DefaultBins() []string { return []string{"/usr/lib/cni", "/opt/cni/bin"} }

// Config is what a Store is made with.
type Config struct {
	// Dir is the borglet's directory, RunDir for what does not outlive a boot. Absolute.
	Dir, RunDir string
	// Conf is the directory with the configuration of the network: the first file of
	// it by name counts. Bins are those with plugins, the first that has one first.
	Conf string
	Bins []string
	Log  *slog.Logger
}

// Store is the networks of one machine. Its methods may be called from several
// goroutines, for different keys at once.
type Store struct {
	cfg Config
	// lacks is why no network can be made here; nil: they can.
	lacks error

	// waiting is held while plugins of an earlier borglet are waited for; alone: there are
	// none any more. Guarded by waiting.
	waiting sync.Mutex
	alone   bool

	mu sync.Mutex
	// made are the networks that are whole. Guarded by mu.
	made map[string]borglet.Network
	// busy has a key that is being made or removed, until when. Guarded by mu.
	busy map[string]chan struct{}
}

// record is what is written down of a network.
type record struct {
	Format int    `json:"format"`
	Key    string `json:"key"`
	// What plugins know it by.
	ID string `json:"id"`
	// The machine's configuration, as it was, and where plugins were looked for.
	Conf json.RawMessage `json:"conf"`
	Bins []string        `json:"bins"`
	// Its address; empty: it was not yet whole.
	Addr string `json:"addr,omitempty"`
}

// recordFormat is that of record; a reader refuses a higher one.
const recordFormat = 1

// Open takes over the networks that an earlier borglet made. A machine that cannot make
// any is none that cannot take them away: see Lacks.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	s := newStore(cfg)
	s.lacks = s.check(ctx)
	keys, err := s.Keys()
	if err != nil || s.lacks != nil && len(keys) == 0 {
		return s, err
	}
	return s, s.prepare(keys)
}

func newStore(cfg Config) *Store {
	return &Store{cfg: cfg, made: map[string]borglet.Network{}, busy: map[string]chan struct{}{}}
}

// Check says why a machine with this configuration and these plugins can make no
// networks; nil: it can. ErrNoConf is told from all else.
func Check(ctx context.Context, conf string, bins []string) error {
	return newStore(Config{Conf: conf, Bins: bins}).check(ctx)
}

// ErrNoConf: nobody has said what network tasks are to have.
var ErrNoConf = errors.New("there is no configuration of networks")

// Lacks says why this machine can make no networks; nil: it can.
func (s *Store) Lacks() error { return s.lacks }

// check looks whether what is configured is there.
func (s *Store) check(ctx context.Context) error {
	list, err := s.conf()
	if err != nil {
		return err
	}
	// Nobody is to be waited for: they are only asked what they are.
	cni := libcni.NewCNIConfig(s.cfg.Bins, &plugins{})
	if _, err := cni.ValidateNetworkList(ctx, list); err != nil {
		return fmt.Errorf("network %s: %w; install the plugins that it names (Debian: containernetworking-plugins), or say where they are with --cni-bin", list.Name, err)
	}
	return nil
}

func (s *Store) cni(bins []string) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(bins, filepath.Join(s.dir(), "cache"), &plugins{lock: s.pluginLock()})
}

func (s *Store) pluginLock() string      { return filepath.Join(s.dir(), "lock") }
func (s *Store) dir() string             { return filepath.Join(s.cfg.Dir, "networks") }
func (s *Store) file(key string) string  { return filepath.Join(s.dir(), key+recordEnd) }
func (s *Store) space(key string) string { return filepath.Join(s.cfg.RunDir, "net", key) }

func (s *Store) bounded() (context.Context, context.CancelFunc) {
	// Not by who asks: a plugin that is stopped half-way leaves more to be undone.
	return context.WithTimeout(context.Background(), pluginsBound)
}

// prepare makes the directories, and reads what there is.
func (s *Store) prepare(keys []string) error {
	if err := os.MkdirAll(s.dir(), 0o700); err != nil {
		return fmt.Errorf("make directory of networks: %w", err)
	}
	if err := os.MkdirAll(s.space(""), 0o711); err != nil {
		return fmt.Errorf("make directory of network name spaces: %w", err)
	}
	for _, key := range keys {
		r, err := s.read(key)
		if err != nil {
			return err
		}
		if r.Addr != "" && isSpace(s.space(key)) {
			s.made[key] = borglet.Network{Space: s.space(key), Addr: r.Addr}
		}
	}
	return nil
}

// conf is the machine's configuration of networks.
func (s *Store) conf() (*libcni.NetworkConfigList, error) {
	names, err := libcni.ConfFiles(s.cfg.Conf, []string{".conflist"})
	if err != nil {
		return nil, fmt.Errorf("read the configuration of networks: %w", err)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%w in %s; write one, such as 10-borg.conflist (docs/network.md), or say where it is with --cni-conf", ErrNoConf, s.cfg.Conf)
	}
	slices.Sort(names)
	list, err := libcni.NetworkConfFromFile(names[0])
	if err != nil {
		return nil, fmt.Errorf("read the configuration of networks: %s: %w", names[0], err)
	}
	return list, nil
}

// keyPattern is what a key may be: it is part of paths, and of what plugins get.
var keyPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`)

func checkKey(key string) error {
	if len(key) > maxKeyBytes || !keyPattern.MatchString(key) {
		return fmt.Errorf("network %.80q: letters, digits, dots and dashes, at most %d", key, maxKeyBytes)
	}
	return nil
}

// lock waits until nobody is at work on a key.
func (s *Store) lock(key string) (unlock func()) {
	for {
		s.mu.Lock()
		other := s.busy[key]
		if other == nil {
			break
		}
		s.mu.Unlock()
		<-other
	}
	defer s.mu.Unlock()
	mine := make(chan struct{})
	s.busy[key] = mine
	return func() {
		s.mu.Lock()
		delete(s.busy, key)
		s.mu.Unlock()
		close(mine)
	}
}

// Find returns a network that is whole.
func (s *Store) Find(key string) (borglet.Network, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.made[key]
	return n, ok
}

// Keys lists all networks, those that are half made or half removed too.
func (s *Store) Keys() ([]string, error) {
	entries, err := os.ReadDir(s.dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list networks: %w", err)
	}
	var keys []string
	for _, e := range entries {
		if key, ok := strings.CutSuffix(e.Name(), recordEnd); ok && checkKey(key) == nil {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// Make returns the network of a key, which is made if there is none.
func (s *Store) Make(key string) (borglet.Network, error) {
	if err := checkKey(key); err != nil {
		return borglet.Network{}, err
	}
	defer s.lock(key)()
	if n, ok := s.Find(key); ok && isSpace(n.Space) {
		return n, nil
	}
	if s.lacks != nil {
		return borglet.Network{}, fmt.Errorf("this machine gives tasks no networks of their own: %w", s.lacks)
	}
	if err := s.await(); err != nil {
		return borglet.Network{}, err
	}
	if err := s.remove(key); err != nil {
		return borglet.Network{}, fmt.Errorf("take away what an earlier start left: %w", err)
	}
	n, err := s.make(key)
	if err != nil {
		if undo := s.remove(key); undo != nil {
			s.cfg.Log.Warn("what was made of a network cannot be taken away yet", "network", key, "err", undo)
		}
		return borglet.Network{}, fmt.Errorf("make the network of its own: %w", err)
	}
	s.mu.Lock()
	s.made[key] = n
	s.mu.Unlock()
	return n, nil
}

func (s *Store) make(key string) (borglet.Network, error) {
	if s.lacks != nil {
		return borglet.Network{}, s.lacks
	}
	list, err := s.conf()
	if err != nil {
		return borglet.Network{}, err
	}
	r := record{Format: recordFormat, Key: key, ID: containerID(s.cfg.RunDir, key), Conf: list.Bytes, Bins: s.cfg.Bins}
	if err := s.write(r); err != nil {
		return borglet.Network{}, err
	}
	if err := makeSpace(s.space(key)); err != nil {
		return borglet.Network{}, err
	}
	ctx, cancel := s.bounded()
	defer cancel()
	result, err := s.cni(r.Bins).AddNetworkList(ctx, list, s.runtime(r))
	if err != nil {
		return borglet.Network{}, fmt.Errorf("network %s: %w", list.Name, err)
	}
	made, err := types100.GetResult(result)
	if err != nil {
		return borglet.Network{}, fmt.Errorf("network %s: read what its plugins say: %w", list.Name, err)
	}
	for _, ip := range made.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			continue
		}
		r.Addr = addr.Unmap().String()
		return borglet.Network{Space: s.space(key), Addr: r.Addr}, s.write(r)
	}
	return borglet.Network{}, fmt.Errorf("network %s: its plugins give no address; name one for addresses in it, such as host-local (ipam)", list.Name)
}

// Remove takes a network away; that there is none is no error.
func (s *Store) Remove(key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	defer s.lock(key)()
	if _, err := os.Stat(s.file(key)); err == nil {
		if err := s.await(); err != nil {
			return err
		}
	}
	return s.remove(key)
}

// remove is for whoever holds the key.
func (s *Store) remove(key string) error {
	s.mu.Lock()
	delete(s.made, key)
	s.mu.Unlock()
	r, err := s.read(key)
	if errors.Is(err, fs.ErrNotExist) {
		return dropSpace(s.space(key))
	}
	if err != nil {
		return err
	}
	list, err := libcni.NetworkConfFromBytes(r.Conf)
	if err != nil {
		return fmt.Errorf("remove network %s: read its configuration: %w", key, err)
	}
	if r.Addr != "" {
		// From now on it is not whole, also for a borglet that finds the half of it.
		r.Addr = ""
		if err := s.write(r); err != nil {
			return err
		}
	}
	ctx, cancel := s.bounded()
	defer cancel()
	how := s.runtime(r)
	if !isSpace(how.NetNS) {
		// Plugins take back the rest of it, such as its address, and refuse a file.
		how.NetNS = ""
	}
	if err := s.cni(r.Bins).DelNetworkList(ctx, list, how); err != nil {
		return fmt.Errorf("remove network %s: %w", key, err)
	}
	if err := dropSpace(s.space(key)); err != nil {
		return err
	}
	if err := os.Remove(s.file(key)); err != nil {
		return fmt.Errorf("remove network %s: %w", key, err)
	}
	return borglet.SyncDir(s.dir())
}

// await waits until what an earlier borglet started is through. Nothing else waits for
// that: a plugin that hangs keeps no task from being taken over.
func (s *Store) await() error {
	s.waiting.Lock()
	defer s.waiting.Unlock()
	if s.alone {
		return nil
	}
	if err := awaitPlugins(s.pluginLock(), s.cfg.Log); err != nil {
		return err
	}
	s.alone = true
	return nil
}

func (s *Store) runtime(r record) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: r.ID, NetNS: s.space(r.Key), IfName: device}
}

func (s *Store) write(r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write down network %s: %w", r.Key, err)
	}
	return borglet.WriteSynced(s.file(r.Key), text)
}

func (s *Store) read(key string) (record, error) {
	text, err := os.ReadFile(s.file(key))
	if err != nil {
		return record{}, fmt.Errorf("read network %s: %w", key, err)
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return record{}, fmt.Errorf("read network %s: %w", key, err)
	}
	if r.Format > recordFormat {
		return record{}, fmt.Errorf("network %s was written by a newer borglet (format %d, this one knows up to %d); start that one", key, r.Format, recordFormat)
	}
	return r, nil
}

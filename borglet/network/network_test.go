package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// insideVariable: the test runs in a network and a view of mounts of its own.
	insideVariable = "BORG_NETWORK_TEST_INSIDE"
	// doVariable makes of the test program one that makes or removes a network, as a
	// borglet that may be killed does: "make" or "remove".
	doVariable   = "BORG_NETWORK_TEST_DO"
	baseVariable = "BORG_NETWORK_TEST_BASE"

	realPlugins = "/usr/lib/cni"
	key         = "1-2-0.0.1"
	patience    = 5 * time.Minute
)

// gatedBridge is the plugin bridge, real but for gates: it waits before and after its work
// as long as there is a file "shut.WHEN.COMMAND", and says so by "at.WHEN.COMMAND". With a
// file "fail.COMMAND" it does nothing, and fails.
const gatedBridge = `#!/bin/sh
dir=$(dirname "$0")
case "$CNI_COMMAND" in VERSION) exec /usr/lib/cni/bridge;; esac
gate() {
	[ -e "$dir/shut.$1.$CNI_COMMAND" ] || return 0
	touch "$dir/at.$1.$CNI_COMMAND"
	while [ -e "$dir/shut.$1.$CNI_COMMAND" ]; do sleep 0.02; done
}
conf=$(cat)
echo "begin $CNI_COMMAND" >> "$dir/journal"
gate before
if [ -e "$dir/fail.$CNI_COMMAND" ]; then
	echo '{"cniVersion":"1.0.0","code":100,"msg":"told to fail"}'
	exit 1
fi
said=$(echo "$conf" | /usr/lib/cni/bridge) || { echo "$said"; exit 1; }
gate after
echo "end $CNI_COMMAND" >> "$dir/journal"
echo "$said"
`

func TestMain(m *testing.M) {
	if do := os.Getenv(doVariable); do != "" {
		if err := (&lab{base: os.Getenv(baseVariable)}).do(do); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// lab is a machine of which only networks are there.
type lab struct {
	t    *testing.T
	base string
}

func (l *lab) config() Config {
	return Config{
		Dir: filepath.Join(l.base, "dir"), RunDir: filepath.Join(l.base, "run"), Conf: filepath.Join(l.base, "conf"),
		Bins: []string{filepath.Join(l.base, "bin"), realPlugins}, Log: slog.New(slog.DiscardHandler),
	}
}

func (l *lab) do(what string) error {
	s, err := Open(context.Background(), l.config())
	if err != nil {
		return err
	}
	if what == "remove" {
		return s.Remove(key)
	}
	_, err = s.Make(key)
	return err
}

// inLab runs the test that calls it once more, in a network and a view of mounts that end
// with it, and returns nil; there it returns the lab.
func inLab(t *testing.T) *lab {
	t.Helper()
	if os.Getenv(insideVariable) == "" {
		if os.Getuid() != 0 {
			t.Skip("networks need root")
		}
		for _, tool := range []string{"ip", "mount", "nsenter"} {
			if _, err := exec.LookPath(tool); err != nil {
				t.Skipf("needs the tool %s (Debian: iproute2, mount, util-linux)", tool)
			}
		}
		for _, plugin := range []string{"bridge", "host-local"} {
			if _, err := os.Stat(filepath.Join(realPlugins, plugin)); err != nil {
				t.Skipf("needs CNI plugins in %s (Debian: containernetworking-plugins)", realPlugins)
			}
		}
		again := exec.Command("/bin/sh", "-c", `mount --make-rprivate / && ip link set lo up && exec "$0" "$@"`, os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
		again.Env = append(os.Environ(), insideVariable+"=1")
		again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
		out, err := again.CombinedOutput()
		t.Logf("in a network of its own:\n%s", out)
		if err != nil {
			t.Errorf("in a network of its own: %v", err)
		}
		return nil
	}
	l := &lab{t: t, base: t.TempDir()}
	for _, dir := range []string{"dir", "run", "conf", "bin"} {
		if err := os.Mkdir(filepath.Join(l.base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l.put("bin/bridge", gatedBridge, 0o755)
	l.configure("tasks0", "10.98.0.0/24")
	return l
}

func (l *lab) put(name, text string, mode os.FileMode) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.base, name), []byte(text), mode); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) configure(bridge, subnet string) {
	l.put("conf/10-tasks.conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %[1]q, "plugins": [
		{"type": "bridge", "bridge": %[1]q, "isGateway": true, "ipam": {"type": "host-local", "subnet": %[2]q, "dataDir": %[3]q}}]}`,
		bridge, subnet, filepath.Join(l.base, "leases")), 0o644)
}

func (l *lab) open() *Store {
	l.t.Helper()
	s, err := Open(l.t.Context(), l.config())
	if err != nil || s.Lacks() != nil {
		l.t.Fatalf("open: %v, lacks %v", err, s.Lacks())
	}
	return s
}

func (l *lab) has(name string) bool {
	_, err := os.Lstat(filepath.Join(l.base, name))
	return err == nil
}

// until waits for what another process does.
func (l *lab) until(what string, ok func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("waited in vain until %s; left are %v", what, l.left())
		}
	}
}

// killedAt has another process make or remove the network, and kills it when its plugin
// is at a gate. The plugin goes on to wait there.
func (l *lab) killedAt(do, gate string) {
	l.t.Helper()
	l.put("bin/shut."+gate, "", 0o644)
	var out strings.Builder
	borglet := exec.Command(os.Args[0])
	borglet.Env, borglet.Stdout = append(os.Environ(), doVariable+"="+do, baseVariable+"="+l.base), &out
	if err := borglet.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.until("a plugin is at the gate "+gate+": "+out.String(), func() bool { return l.has("bin/at." + gate) })
	if err := borglet.Process.Kill(); err != nil {
		l.t.Fatal(err)
	}
	// Its output stays open in the plugin.
	if _, err := borglet.Process.Wait(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) openGate(gate string) {
	l.t.Helper()
	for _, name := range []string{"bin/at." + gate, "bin/shut." + gate} {
		if err := os.Remove(filepath.Join(l.base, name)); err != nil {
			l.t.Fatal(err)
		}
	}
}

// left is all that is there of networks: records, what CNI keeps, name spaces, leases, and
// devices of the machine.
func (l *lab) left() (left []string) {
	l.t.Helper()
	for _, pattern := range []string{"dir/networks/*.json", "dir/networks/cache/*/*", "run/net/*", "leases/*/10.*"} {
		found, err := filepath.Glob(filepath.Join(l.base, pattern))
		if err != nil {
			l.t.Fatal(err)
		}
		left = append(left, found...)
	}
	out, err := exec.Command("ip", "-o", "link", "show", "type", "veth").CombinedOutput()
	if err != nil {
		l.t.Fatalf("ip: %v: %s", err, out)
	}
	if len(out) > 0 {
		left = append(left, string(out))
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		l.t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, l.base) {
			left = append(left, line)
		}
	}
	return left
}

func (l *lab) nothingLeft(when string) {
	l.t.Helper()
	if left := l.left(); len(left) > 0 {
		l.t.Fatalf("%s there are %v", when, left)
	}
}

// whole wants a network to be there: its address is in it, alone, and a lease says whose.
func (l *lab) whole(s *Store, addr string) {
	l.t.Helper()
	n, ok := s.Find(key)
	if !ok || n.Addr != addr || addr == "" {
		l.t.Fatalf("found is %v, %v, want the address %s", n, ok, addr)
	}
	out, err := exec.Command("nsenter", "--net="+n.Space, "ip", "-4", "-o", "addr", "show", "dev", device).CombinedOutput()
	if err != nil || strings.Count(string(out), "inet ") != 1 || !strings.Contains(string(out), "inet "+addr+"/") {
		l.t.Fatalf("in the name space is %s, %v, want %s alone", out, err, addr)
	}
	leases, err := filepath.Glob(filepath.Join(l.base, "leases", "*", "10.*"))
	if err != nil || len(leases) != 1 || filepath.Base(leases[0]) != addr {
		l.t.Fatalf("leases are %v, want that of %s", leases, addr)
	}
}

// journal is what the plugin did, in its order.
func (l *lab) journal() []string {
	text, _ := os.ReadFile(filepath.Join(l.base, "bin", "journal"))
	return strings.Fields(strings.ReplaceAll(strings.TrimSpace(string(text)), " ", "-"))
}

// TestKilledAtEachPoint: a borglet is killed while a plugin makes or removes a network,
// before and after its real work. What it was about is written down; the next one waits
// until the plugin is through, and makes it whole or takes it away: nothing is there
// twice, and nothing is left.
func TestKilledAtEachPoint(t *testing.T) {
	l := inLab(t)
	if l == nil {
		return
	}
	for _, point := range []struct{ do, gate string }{
		{"make", "before.ADD"}, {"make", "after.ADD"}, {"remove", "before.DEL"}, {"remove", "after.DEL"},
	} {
		for _, then := range []string{"make", "remove"} {
			when := fmt.Sprintf("killed at %s, then %s", point.gate, then)
			_ = os.Remove(filepath.Join(l.base, "bin", "journal"))
			if point.do == "remove" {
				if err := l.do("make"); err != nil {
					t.Fatalf("%s: %v", when, err)
				}
			}
			l.killedAt(point.do, point.gate)
			next := l.open()
			if keys, err := next.Keys(); err != nil || !slices.Equal(keys, []string{key}) {
				t.Fatalf("%s: the next borglet finds %v, %v: what it was about is not written down", when, keys, err)
			}
			if n, found := next.Find(key); found {
				t.Fatalf("%s: what is half there counts as whole: %v", when, n)
			}
			done := make(chan error, 1)
			var made string
			go func() {
				if then == "remove" {
					done <- next.Remove(key)
					return
				}
				n, err := next.Make(key)
				made = n.Addr
				done <- err
			}()
			l.until(when+": the next borglet waits for the plugin", func() bool {
				free := next.waiting.TryLock()
				if free {
					next.waiting.Unlock()
				}
				return !free
			})
			l.openGate(point.gate)
			if err := <-done; err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			if then == "make" {
				l.whole(next, made)
				if err := next.Remove(key); err != nil {
					t.Fatalf("%s: remove: %v", when, err)
				}
			}
			l.nothingLeft(when)
			// No two plugins were at work at once.
			journal := l.journal()
			for i, line := range journal {
				what, command, _ := strings.Cut(line, "-")
				if i%2 == 1 && (what != "end" || journal[i-1] != "begin-"+command) || i%2 == 0 && what != "begin" {
					t.Errorf("%s: plugins did %v", when, journal)
					break
				}
			}
		}
	}
}

// TestFailingPlugins: what fails to be made is undone at once, and what fails to be removed
// stays written down until it can be.
func TestFailingPlugins(t *testing.T) {
	l := inLab(t)
	if l == nil {
		return
	}
	s := l.open()
	l.put("bin/fail.ADD", "", 0o644)
	if n, err := s.Make(key); err == nil || !strings.Contains(err.Error(), "told to fail") {
		t.Fatalf("made is %v, %v", n, err)
	}
	l.nothingLeft("after a network that could not be made")
	if err := os.Remove(filepath.Join(l.base, "bin", "fail.ADD")); err != nil {
		t.Fatal(err)
	}
	n, err := s.Make(key)
	if err != nil {
		t.Fatal(err)
	}
	l.whole(s, n.Addr)
	l.put("bin/fail.DEL", "", 0o644)
	if err := s.Remove(key); err == nil || !strings.Contains(err.Error(), "told to fail") {
		t.Fatalf("removed: %v", err)
	}
	next := l.open()
	if keys, err := next.Keys(); err != nil || !slices.Equal(keys, []string{key}) {
		t.Errorf("after a removal that failed the next borglet finds %v, %v", keys, err)
	}
	if _, found := next.Find(key); found {
		t.Error("a network that is half removed counts as whole")
	}
	if err := os.Remove(filepath.Join(l.base, "bin", "fail.DEL")); err != nil {
		t.Fatal(err)
	}
	if err := next.Remove(key); err != nil {
		t.Fatal(err)
	}
	l.nothingLeft("after the second try")
}

// TestWhatIsFound: a network is found whole by the next borglet; after a reboot, of which
// leases are left, it is removed before it is made anew; and it is undone as it was made,
// whatever is configured by then. Sweep removes all.
func TestWhatIsFound(t *testing.T) {
	l := inLab(t)
	if l == nil {
		return
	}
	first, err := l.open().Make(key)
	if err != nil {
		t.Fatal(err)
	}
	next := l.open()
	l.whole(next, first.Addr)
	if n, err := next.Make(key); err != nil || n != first {
		t.Errorf("made once more is %v, %v, want %v that is there", n, err, first)
	}
	l.configure("tasks1", "10.99.0.0/24")
	// A machine that was started anew has no name spaces and no devices.
	if err := dropSpace(first.Space); err != nil {
		t.Fatal(err)
	}
	rebooted := l.open()
	if n, found := rebooted.Find(key); found {
		t.Fatalf("after a reboot there is %v", n)
	}
	if left := l.left(); len(left) == 0 {
		t.Fatal("a reboot leaves no lease: this test shows nothing")
	}
	again, err := rebooted.Make(key)
	if err != nil || !strings.HasPrefix(again.Addr, "10.99.0.") {
		t.Fatalf("made anew is %v, %v, want an address of what is configured now", again, err)
	}
	l.whole(rebooted, again.Addr)
	if _, err := rebooted.Make("alloc.alice.pool.0"); err != nil {
		t.Fatal(err)
	}
	if n, err := Sweep(l.config().Dir, l.config().RunDir); n != 2 || err != nil {
		t.Errorf("swept are %d, %v, want 2", n, err)
	}
	l.nothingLeft("after the sweep")
}

// TestRefused: what cannot be is said, with what is missing.
func TestRefused(t *testing.T) {
	base := t.TempDir()
	cfg := Config{Dir: filepath.Join(base, "dir"), RunDir: filepath.Join(base, "run"), Conf: filepath.Join(base, "conf"), Bins: []string{base}, Log: slog.New(slog.DiscardHandler)}
	s, err := Open(t.Context(), cfg)
	if err != nil || !errors.Is(s.Lacks(), ErrNoConf) {
		t.Errorf("without a configuration: %v, lacks %v", err, s.Lacks())
	}
	if err := os.Mkdir(cfg.Conf, 0o755); err != nil {
		t.Fatal(err)
	}
	conf := `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "no-such-plugin"}]}`
	if err := os.WriteFile(filepath.Join(cfg.Conf, "a.conflist"), []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(t.Context(), cfg); err != nil || s.Lacks() == nil || !strings.Contains(s.Lacks().Error(), "no-such-plugin") {
		t.Errorf("without the plugin: %v, lacks %v", err, s.Lacks())
	}
	for _, bad := range []string{"", "../x", "a/b", "-a", ".a", "A", strings.Repeat("a", maxKeyBytes+1)} {
		if _, err := s.Make(bad); err == nil {
			t.Errorf("a network %q is made", bad)
		}
		if err := s.Remove(bad); err == nil {
			t.Errorf("a network %q is removed", bad)
		}
	}
	if err := os.MkdirAll(s.dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.file(key), []byte(`{"format": 2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "newer borglet") {
		t.Errorf("a record of a later format: %v", err)
	}
}

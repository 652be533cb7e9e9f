package deploy

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// hold makes the namespaces of a host a machine's, and holds them: $1 is the
// directory with its private directories, $2 its name.
const hold = `
mount --make-rprivate /
hostname "$2"
for pair in etc:/etc lib:/var/lib log:/var/log bin:/usr/local/bin home:/home; do
	mount --bind "$1/${pair%%:*}" "${pair#*:}"
done
mount -t tmpfs -o mode=755 tmpfs /run
ip link set lo up
echo ready
exec sleep infinity
`

// newSite makes the machines. The network namespace of the test itself is what they
// are all plugged into.
func newSite(t *testing.T) *site {
	t.Helper()
	dir := os.Getenv("BORG_INSTALL_DIR")
	s := &site{t: t, dir: dir, hosts: make(map[string]*host), binDir: filepath.Join(dir, "stand-ins"), addrDir: filepath.Join(dir, "addresses")}
	s.sh("ip link set lo up")
	if out, err := exec.Command("ip", "link", "add", "br0", "type", "bridge").CombinedOutput(); err != nil {
		t.Skipf("the kernel here makes no bridge: %s", out)
	}
	s.sh("ip addr add 10.0.255.1/16 dev br0 && ip link set br0 up")
	s.sh(fmt.Sprintf("mkdir %s %s", s.binDir, s.addrDir))
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.sh(fmt.Sprintf("cp %s %s/systemctl", exe, s.binDir))
	for _, name := range []string{"scp", "curl"} {
		s.sh(fmt.Sprintf("ln -s systemctl %s/%s", s.binDir, name))
	}
	for i, name := range masters {
		s.add(name, fmt.Sprintf("10.0.0.%d", i+1), i+1)
	}
	for i, name := range machines {
		s.add(name, fmt.Sprintf("10.0.1.%d", i+1), i+1)
	}
	return s
}

// add makes one machine.
func (s *site) add(name, addr string, n int) {
	s.t.Helper()
	h := &host{name: name, addr: addr, n: n, dir: filepath.Join(s.dir, name)}
	s.sh(fmt.Sprintf("mkdir -p %[1]s/lib %[1]s/log %[1]s/bin %[1]s/home/root && cp -a /etc %[1]s/etc && mkdir -p %[1]s/etc/systemd/system", h.dir))
	cmd := exec.Command("sh", "-euc", hold, "sh", h.dir, name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("make %s: %v", name, err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		s.t.Fatalf("make %s: %q, %v", name, line, err)
	}
	h.holder = cmd.Process.Pid
	s.sh(fmt.Sprintf(`
ip link add name %[1]s type veth peer name eth0 netns %[2]d
ip link set %[1]s master br0 up
nsenter --target %[2]d --net ip addr add %[3]s/16 dev eth0
nsenter --target %[2]d --net ip link set eth0 up
printf %[2]d > %[4]s/%[3]s`, name, h.holder, addr, s.addrDir))
	s.hosts[name] = h
}

// sh does a step of the test's own.
func (s *site) sh(script string) {
	s.t.Helper()
	if out, err := exec.Command("sh", "-euc", script).CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v: %s", strings.TrimSpace(script), err, out)
	}
}

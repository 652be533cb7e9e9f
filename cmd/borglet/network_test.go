package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// gateScript is a plugin that waits at a gate, when there is one: the file "shut.COMMAND"
// beside it. It says that it is there by the file "at.COMMAND".
const gateScript = `#!/bin/sh
dir=$(dirname "$0")
case "$CNI_COMMAND" in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}'; exit 0;;
esac
conf=$(cat)
echo "begin $CNI_COMMAND" >> "$dir/journal"
if [ -e "$dir/shut.$CNI_COMMAND" ]; then
	touch "$dir/at.$CNI_COMMAND"
	while [ -e "$dir/shut.$CNI_COMMAND" ]; do sleep 0.02; done
fi
echo "end $CNI_COMMAND" >> "$dir/journal"
if [ "$CNI_COMMAND" = ADD ]; then
	echo "$conf" | tr -d '\n' | sed 's/.*"prevResult":\({.*}\),"type.*/\1/'
fi
`

// networked is a machine that can give tasks networks of their own, in a network that was
// made for the test.
type networked struct {
	*machine
	// gate is the directory of the plugin that waits, leases that of addresses.
	gate, leases string
}

// withNetworks returns nil in the process that only runs the test again.
func withNetworks(t *testing.T) *networked {
	t.Helper()
	for _, plugin := range []string{"bridge", "host-local"} {
		if _, err := os.Stat(filepath.Join("/usr/lib/cni", plugin)); err != nil {
			t.Skip("needs CNI plugins in /usr/lib/cni (Debian: containernetworking-plugins)")
		}
	}
	if _, inside := inOwnNetwork(t); !inside {
		return nil
	}
	base := t.TempDir()
	n := &networked{gate: filepath.Join(base, "bin"), leases: filepath.Join(base, "leases")}
	conf := filepath.Join(base, "conf")
	for _, dir := range []string{n.gate, conf} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(n.gate, "gate"), []byte(gateScript), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(conf, "10-tasks.conflist"), []byte(n.conf("tasks0", "10.98.0.0/24")), 0o644); err != nil {
		t.Fatal(err)
	}
	n.machine = newMachine(t, "container", "--cni-conf", conf, "--cni-bin", "/usr/lib/cni", "--cni-bin", n.gate)
	return n
}

func (n *networked) conf(bridge, subnet string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %[1]q, "plugins": [
		{"type": "bridge", "bridge": %[1]q, "isGateway": true, "ipam": {"type": "host-local", "subnet": %[2]q, "dataDir": %[3]q}},
		{"type": "gate"}]}`, bridge, subnet, n.leases)
}

// listens has a task listen on a port in a network of its own.
func (n *networked) listens(port string) *borgrpc.CopyID {
	return n.want(borgpb.JobKind_JOB_KIND_SERVICE, &borgpb.TaskSpec{
		Args: []string{"/opt/listener", listenArgument, port}, Network: borgpb.Network_NETWORK_OWN,
		Mounts: []*borgpb.Mount{{Source: os.Args[0], Path: "/opt/listener"}},
	})
}

// shut makes plugins wait that are told a command, and open lets them go on.
func (n *networked) shut(command string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.gate, "shut."+command), nil, 0o644); err != nil {
		n.t.Fatal(err)
	}
}

func (n *networked) open(command string) {
	n.t.Helper()
	_ = os.Remove(filepath.Join(n.gate, "at."+command))
	if err := os.Remove(filepath.Join(n.gate, "shut."+command)); err != nil {
		n.t.Fatal(err)
	}
}

// atGate waits until a plugin waits, polling.
func (n *networked) atGate(command string) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); !exists(filepath.Join(n.gate, "at."+command)); time.Sleep(20 * time.Millisecond) {
		if n.poll(); time.Now().After(deadline) {
			n.t.Fatalf("no plugin is told to %s", command)
		}
	}
}

// left is all that is there of networks.
func (n *networked) left() (left []string) {
	n.t.Helper()
	for _, pattern := range []string{filepath.Join(n.dir, "networks", "*.json"), filepath.Join(n.dir, "networks", "cache", "*", "*"), filepath.Join(n.runDir, "net", "*"), filepath.Join(n.leases, "*", "10.*")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			n.t.Fatal(err)
		}
		left = append(left, found...)
	}
	devices, err := net.Interfaces()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, d := range devices {
		if strings.HasPrefix(d.Name, "veth") {
			left = append(left, "device "+d.Name)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		n.t.Fatal(err)
	}
	if strings.Contains(string(mounts), n.runDir+"/net/") {
		left = append(left, "mounts below "+n.runDir+"/net")
	}
	return left
}

// nothingLeft waits until that is so.
func (n *networked) nothingLeft() {
	n.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		left := n.left()
		if len(left) == 0 {
			return
		}
		if n.poll(); time.Now().After(deadline) {
			n.t.Fatalf("of networks there is left: %q", left)
		}
	}
}

// ends has a copy stopped and forgotten, and waits until nothing is left of it.
func (n *networked) ends(id *borgrpc.CopyID) {
	n.t.Helper()
	n.stop(id, 0)
	n.untilState(id, stopped)
	n.stops, n.forget = nil, []*borgrpc.CopyID{id}
	n.poll()
	n.forget = nil
	n.gone(id)
}

// served waits until a port of a copy answers at the address that is reported for it, and returns that.
func (n *networked) served(id *borgrpc.CopyID, port string) string {
	n.t.Helper()
	addr := n.untilState(id, running).GetAddr()
	n.reached(addr, port)
	return addr
}

func (n *networked) reached(addr, port string) {
	n.t.Helper()
	var last error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(addr, port), time.Second)
		if last = err; err != nil {
			continue
		}
		said, err := io.ReadAll(conn)
		conn.Close()
		if last = err; err == nil && string(said) == "hello\n" {
			return
		}
	}
	n.t.Fatalf("%s of %q does not answer: %v", port, addr, last)
}

// TestOwnNetworks: tasks with networks of their own use the same port of one machine,
// each at its address, see no other network, and keep all that over the death of the
// borglet and their own restarts. At the end nothing is left of it.
func TestOwnNetworks(t *testing.T) {
	n := withNetworks(t)
	if n == nil {
		return
	}
	one, two := n.listens("80"), n.listens("80")
	addrs := []string{n.served(one, "80"), n.served(two, "80")}
	if addrs[0] == addrs[1] {
		t.Errorf("two tasks have the address %s", addrs[0])
	}
	lookers := []*borgrpc.CopyID{n.looks(nil), n.looks(&borgpb.Relax{UserIds: true})}

	pids := []int64{n.untilState(one, running).GetPid(), n.untilState(two, running).GetPid()}
	n.kill()
	for _, addr := range addrs {
		n.reached(addr, "80")
	}
	n.start()
	for i, id := range []*borgrpc.CopyID{one, two} {
		if r := n.untilState(id, running); r.GetAddr() != addrs[i] || r.GetPid() != pids[i] {
			t.Errorf("after the borglet was killed: %v, want process %d at %s", r, pids[i], addrs[i])
		}
	}

	if err := unix.Kill(int(pids[0]), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.until(one, "started again", func(r *borgpb.TaskReport) bool { return r.GetRestarts() == 1 && r.GetState() == int32(running) })
	if addr := n.served(one, "80"); addr != addrs[0] {
		t.Errorf("started again it is at %s, was at %s", addr, addrs[0])
	}

	n.ends(one)
	n.reached(addrs[1], "80")
	n.forgetAll(append(lookers, two)...)
	n.nothingLeft()
}

// looks has a task see whose network it has, and a program beside it see the same.
func (n *networked) looks(relax *borgpb.Relax) *borgrpc.CopyID {
	n.t.Helper()
	const look = "ls /sys/class/net; echo $BORG_ADDR; tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort; readlink /proc/self/ns/net"
	id := n.want(borgpb.JobKind_JOB_KIND_SERVICE, &borgpb.TaskSpec{
		Args: []string{"/bin/sh", "-c", look + "; sleep 3600"}, Network: borgpb.Network_NETWORK_OWN, Relax: relax,
	})
	addr := n.untilState(id, running).GetAddr()
	n.untilSaid(id, "net:")
	said := n.read(id, "stdout")
	if lines := strings.Fields(said); !slices.Equal(lines[:len(lines)-1], []string{"eth0", "lo", addr, "eth0", "lo"}) {
		n.t.Errorf("it sees %q, want eth0, lo and %s", lines, addr)
	}
	p := n.exec(id, &borgrpc.ExecProgram{Args: []string{"sh", "-c", look}})
	if p.end(); p.stdout.String() != said {
		n.t.Errorf("a program beside it sees %q, the task %q (%v, %q)", p.stdout.String(), said, p.err, p.stderr.String())
	}
	return id
}

// untilSaid waits until a copy has written something.
func (n *networked) untilSaid(id *borgrpc.CopyID, want string) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(n.read(id, "stdout"), want); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("it does not say %q, but %q and %q", want, n.read(id, "stdout"), n.read(id, "stderr"))
		}
	}
}

// TestNetworkHeldByNobody: the shim of one copy holds the network of no other, so that it
// ends with its own copy.
func TestNetworkHeldByNobody(t *testing.T) {
	n := withNetworks(t)
	if n == nil {
		return
	}
	short := n.listens("80")
	n.served(short, "80")
	var st unix.Stat_t
	key := filepath.Base(n.file(short, ""))
	if err := unix.Stat(filepath.Join(n.runDir, "net", key), &st); err != nil {
		t.Fatal(err)
	}
	// These begin while it is there.
	long := []*borgrpc.CopyID{n.listens("80"), n.service("sleep", "3600")}
	for _, id := range long {
		n.untilState(id, running)
	}
	n.ends(short)
	n.kill()
	deadline := time.Now().Add(patience)
	for held := holders(t, st.Ino); len(held) > 0; held = holders(t, st.Ino) {
		if time.Now().After(deadline) {
			t.Fatalf("its name space is held by processes %v", held)
		}
		time.Sleep(20 * time.Millisecond)
	}
	n.start()
	n.forgetAll(long...)
	n.nothingLeft()
}

// holders are the processes that are in a network name space, or see it mounted.
func holders(t *testing.T, inode uint64) (found []string) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("net:[%d]", inode)
	for _, dir := range dirs {
		target, _ := os.Readlink(filepath.Join(dir, "ns/net"))
		mounts, _ := os.ReadFile(filepath.Join(dir, "mountinfo"))
		if target == name || strings.Contains(string(mounts), name) {
			found = append(found, filepath.Base(dir))
		}
	}
	return found
}

// TestNetworkBorgletKilled kills the borglet while a plugin works for it. The next one
// waits for the plugin, and finishes what was begun, or undoes it.
func TestNetworkBorgletKilled(t *testing.T) {
	n := withNetworks(t)
	if n == nil {
		return
	}
	n.shut("ADD")
	id := n.listens("80")
	n.atGate("ADD")
	n.kill()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for deadline := time.Now().Add(patience); !strings.Contains(n.log.String(), "waits for network plugins"); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				break
			}
		}
		n.open("ADD")
	}()
	n.start()
	addr := n.served(id, "80")
	<-ended
	journal, err := os.ReadFile(filepath.Join(n.gate, "journal"))
	if want := "begin ADD\nend ADD\nbegin DEL\nend DEL\nbegin ADD\nend ADD\n"; err != nil || string(journal) != want {
		t.Errorf("plugins ran as %q, %v; want %q", journal, err, want)
	}
	// Its record, what libcni keeps, its name space and the mount of that, an address, a device.
	if left := n.left(); len(left) != 6 {
		t.Errorf("of one network there is %q", left)
	}

	// In the middle of the removal; meanwhile the machine's configuration is another.
	n.shut("DEL")
	n.stop(id, 0)
	n.atGate("DEL")
	n.kill()
	n.open("DEL")
	conf, err := filepath.Glob(filepath.Join(filepath.Dir(n.gate), "conf", "*"))
	if err != nil || len(conf) != 1 {
		t.Fatal(conf, err)
	}
	if err := os.WriteFile(conf[0], []byte(n.conf("tasks1", "10.97.0.0/24")), 0o644); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.untilState(id, stopped)
	n.nothingLeft()

	// It is killed, and all that it knew of the copy is gone.
	stray := n.listens("80")
	if other := n.served(stray, "80"); other == addr {
		t.Errorf("it is at %s by a configuration that is no more", other)
	}
	n.kill()
	killShim(t, n.machine, stray)
	n.endsWith(stray)
	// And its name space, but for the file that held it.
	if err := unix.Unmount(filepath.Join(n.runDir, "net", filepath.Base(n.file(stray, ""))), unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(n.file(stray, "")); err != nil {
		t.Fatal(err)
	}
	n.desired, n.stops = nil, nil
	n.start()
	n.nothingLeft()
}

// endsWith kills the process of a copy whose shim is dead.
func (n *networked) endsWith(id *borgrpc.CopyID) {
	n.t.Helper()
	var p struct {
		Proc struct{ Pid int } `json:"proc"`
	}
	if err := json.Unmarshal([]byte(n.read(id, "pid.json")), &p); err != nil || p.Proc.Pid == 0 {
		n.t.Fatalf("pid.json: %v: %s", err, n.read(id, "pid.json"))
	}
	_ = unix.Kill(p.Proc.Pid, unix.SIGKILL)
}

// TestNetworkOfAlloc: what runs in an alloc has the alloc's network, that stays as long as
// masters name the alloc, or somebody is in it.
func TestNetworkOfAlloc(t *testing.T) {
	n := withNetworks(t)
	if n == nil {
		return
	}
	inAlloc := func(id *borgrpc.CopyID) *borgrpc.CopyID {
		d := n.desired[len(n.desired)-1]
		d.Alloc, d.AllocResources, d.AllocNetwork = "alice/pool/0", &borgpb.Resources{CpuMilli: 1000, MemBytes: 256 << 20}, borgpb.Network_NETWORK_OWN
		d.Spec.Network = 0
		return id
	}
	n.allocNetworks = []string{"alice/pool/0"}
	one := inAlloc(n.listens("80"))
	addr := n.served(one, "80")
	asks := "exec 3<>/dev/tcp/127.0.0.1/80; cat <&3; echo at $BORG_ADDR; exec sleep 3600"
	other := inAlloc(n.service("/bin/bash", "-c", asks))
	n.untilState(other, running)
	n.untilSaid(other, "at "+addr)
	if said := n.read(other, "stdout"); said != "hello\nat "+addr+"\n" {
		t.Errorf("over 127.0.0.1 it hears %q, want hello", said)
	}
	n.forgetAll(one, other)
	n.gone(one)
	third := inAlloc(n.listens("80"))
	if now := n.served(third, "80"); now != addr {
		t.Errorf("the alloc was at %s and is at %s", addr, now)
	}
	n.kill()
	n.allocNetworks = nil
	n.start()
	n.reached(n.untilState(third, running).GetAddr(), "80")
	n.forgetAll(third)
	n.nothingLeft()
}

// TestNetworkNotHad: a task that wants a network of its own where there is none ends with
// the reason.
func TestNetworkNotHad(t *testing.T) {
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime, "--cni-conf", t.TempDir())
			if got := m.poll().GetSpec().GetAttributes()["network"]; got != "machine" {
				t.Errorf("attribute network is %q, want machine", got)
			}
			id := m.want(borgpb.JobKind_JOB_KIND_BATCH, &borgpb.TaskSpec{Args: []string{"true"}, Network: borgpb.Network_NETWORK_OWN})
			r := m.until(id, "told why it does not run", func(r *borgpb.TaskReport) bool { return strings.Contains(r.GetText(), "network") })
			t.Log(r.GetText())
		})
	}
}

// TestSoakNetworks has copies with networks of their own, and two in an alloc, come and go
// while the borglet is killed among them. Nothing is left of any.
func TestSoakNetworks(t *testing.T) {
	n := withNetworks(t)
	if n == nil {
		return
	}
	const perRound = 5
	rounds := max(soakTasks(t)/soakLeast/perRound, 4)
	var first atRest
	for round := range rounds {
		var ids []*borgrpc.CopyID
		for i := range perRound {
			id := n.want(borgpb.JobKind_JOB_KIND_SERVICE, &borgpb.TaskSpec{Args: []string{"sleep", "3600"}, Network: borgpb.Network_NETWORK_OWN})
			if i < 2 {
				d := n.desired[len(n.desired)-1]
				d.Spec.Network = 0
				d.Alloc, d.AllocResources, d.AllocNetwork = "alice/pool/0", &borgpb.Resources{CpuMilli: 1000, MemBytes: 256 << 20}, borgpb.Network_NETWORK_OWN
			}
			ids = append(ids, id)
		}
		n.allocNetworks = []string{"alice/pool/0"}
		n.poll()
		// Somewhere in their starts.
		time.Sleep(time.Duration(round%9) * 25 * time.Millisecond)
		n.kill()
		n.start()
		addrs := map[string]int{}
		for _, id := range ids {
			addrs[n.untilState(id, running).GetAddr()]++
		}
		if len(addrs) != perRound-1 || addrs[""] > 0 {
			t.Errorf("%d copies, two of them in an alloc, have the addresses %v", perRound, addrs)
		}
		if round%2 == 0 {
			n.allocNetworks = nil
		}
		for _, id := range ids {
			n.stop(id, 0)
		}
		n.poll()
		time.Sleep(time.Duration(round%5) * 25 * time.Millisecond)
		n.kill()
		n.start()
		for _, id := range ids {
			n.untilState(id, stopped)
		}
		n.desired, n.stops, n.forget, n.allocNetworks = nil, nil, ids, nil
		for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
			told := n.poll().GetTasks()
			if len(told) == 0 {
				break
			}
			// Of an earlier round: its borglet was killed before it had removed it.
			for _, r := range told {
				n.forget = append(n.forget, &borgrpc.CopyID{JobUid: r.GetJobUid(), Index: r.GetIndex(), Attempt: r.GetAttempt()})
			}
			if time.Now().After(deadline) {
				t.Fatalf("forgotten copies are still told of: %v", told)
			}
		}
		if round == 0 {
			first = n.atRest()
		}
	}
	n.nothingLeft()
	n.machine.left(first)
	t.Logf("%d copies came and went, the borglet was killed %d times", rounds*perRound, 2*rounds)
}

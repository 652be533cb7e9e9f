package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"borg/borgmaster"
	"borg/borgmaster/client"
	"borg/borgmaster/memlog"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// joinable is a real master over a log in memory, whose machines are real
// borglets.
type joinable struct {
	t     *testing.T
	ca    *identity.Authority
	addr  string
	admin *client.Client
}

func newJoinable(t *testing.T) *joinable {
	t.Helper()
	c := &joinable{t: t}
	var err error
	if c.ca, err = identity.NewAuthority("test", time.Now(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.addr = l.Addr().String()
	began := time.Now()
	clock := func() int64 { return int64(time.Since(began)) + 1 }
	group, err := memlog.NewGroup(memlog.Config{
		CellID: "join-cell", Epoch: 1, Replicas: 1, Addrs: []string{c.addr},
		Clock: func() (int64, int64) { return clock(), time.Now().UnixNano() },
	})
	if err != nil {
		t.Fatal(err)
	}
	log := group.Replica(1)
	m, err := borgmaster.New(borgmaster.Config{
		CellName: "test", Replica: 1, Addr: c.addr, Log: log, Members: log, FirstAdmin: "root",
		Identity: c.source(identity.Master, "1"), Authority: c.ca,
		PollPeriod: 100 * time.Millisecond, MonotonicNs: clock, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	s := door.NewServer(m.Door())
	m.RegisterServices(s)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(l) })
	running.Go(func() { _ = m.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		s.Stop()
		running.Wait()
	})
	group.Elect(1)
	if c.admin, err = client.New(client.Config{Masters: []string{c.addr}, Identity: c.source(identity.User, "root")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.admin.Close() })
	c.until("the cell has an admin", func() bool {
		users, err := c.admin.ListUsers(t.Context())
		return err == nil && len(users) > 0
	})
	return c
}

func (c *joinable) source(role identity.Role, id string) *identity.Source {
	c.t.Helper()
	s, err := c.ca.Source(identity.Name{Cell: "test", Role: role, ID: id}, time.Now(), identity.Life)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

func (c *joinable) until(what string, ok func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("waited in vain until %s", what)
		}
	}
}

// serve starts a borglet with plain processes in a directory of its own.
func (c *joinable) serve(name, dir, token string) (*exec.Cmd, *syncBuffer) {
	c.t.Helper()
	said := &syncBuffer{}
	cmd := exec.Command(os.Args[0], "serve", "--name", name, "--dir", filepath.Join(dir, "d"), "--run-dir", filepath.Join(dir, "r"),
		"--listen", "127.0.0.1:0", "--runtime", "process", "--log-format", "text", "--join", token)
	cmd.Env = append(os.Environ(), mainVariable+"=1")
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	return cmd, said
}

func (c *joinable) up(machine string) bool {
	resp, err := c.admin.ListMachines(c.t.Context(), &borgrpc.ListMachinesRequest{Name: machine})
	return err == nil && len(resp.Machines) == 1 && resp.Machines[0].Status.GetState() == borgpb.MachineState_MACHINE_STATE_UP &&
		resp.Machines[0].Spec.GetCapacity().GetCpuMilli() > 0
}

// TestJoin: one command on the machine makes it one of the cell. Its token is
// worth nothing afterwards, to it or to others; its certificate lets it start
// again without one.
func TestJoin(t *testing.T) {
	c := newJoinable(t)
	token, err := c.admin.Invite(t.Context(), "borglet/m1", "", "")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token.Text()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, other := t.TempDir(), t.TempDir()
	cmd, said := c.serve("m1", dir, file)
	stop := func() {
		if cmd != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			cmd = nil
		}
	}
	defer stop()
	c.until("the machine serves", func() bool { return strings.Contains(said.String(), "borglet serves") })
	c.until("the machine is in the cell and up", func() bool { return c.up("m1") })
	if info, err := os.Stat(filepath.Join(dir, "d", identityFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v, want mode 0600", identityFile, info, err)
	}
	// Somebody else has seen the token: on another machine, and under its name.
	for _, tt := range []struct{ name, want string }{
		{"m2", "the token is for borglet m1, and this is machine m2"},
		{"m1", "the token was used already"},
	} {
		thief, heard := c.serve(tt.name, other, file)
		if err := thief.Wait(); thief.ProcessState.ExitCode() != 8 || !strings.Contains(heard.String(), tt.want) {
			t.Errorf("a token replayed as %s: %v, want exit code 8 and %q:\n%s", tt.name, err, tt.want, heard)
		}
	}
	// It comes back with what it has; the token on its command line is not looked at.
	stop()
	cmd, said = c.serve("m1", dir, file)
	c.until("it serves again", func() bool { return strings.Contains(said.String(), "borglet serves") })
	if strings.Contains(said.String(), "joined") {
		t.Errorf("it joins again:\n%s", said)
	}
	if machines, err := c.admin.ListMachines(t.Context(), &borgrpc.ListMachinesRequest{}); err != nil || len(machines.Machines) != 1 {
		t.Errorf("machines are %v, %v, want m1 alone", machines, err)
	}
	if strings.Contains(fmt.Sprint(said), token.Text()[20:60]) {
		t.Error("the token is in the borglet's log")
	}
}

// TestStrangersSayWhatToDo: without a certificate or with an odd token nothing
// starts.
func TestStrangersSayWhatToDo(t *testing.T) {
	c := newJoinable(t)
	for _, tt := range []struct{ token, want string }{
		{"", "borgcfg machine invite m9"},
		{"borg-join-AQ", "not a token of a cell"},
		{"/nosuch/file", "neither a token nor the file of one"},
	} {
		cmd, said := c.serve("m9", t.TempDir(), tt.token)
		if err := cmd.Wait(); err == nil || !strings.Contains(said.String(), tt.want) {
			t.Errorf("--join %q: %v, want %q:\n%s", tt.token, err, tt.want, said)
		}
	}
}

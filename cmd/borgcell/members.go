package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"borg/borgmaster/client"
	"borg/checkpoint"
	"borg/proto/borgpb"
)

// replicaFile and authorityName are files of a replica's directory. A replica that was taken
// out of the cell deletes its authority and keeps the other.
const (
	replicaFile   = "replica.json"
	authorityName = "authority.pem"
)

// masterNumbers are the numbers of the masters that run here, ascending: those the cell was
// made with, and those that joined later with a directory beside theirs. Masters that were
// taken out of the cell are not among them.
func (l layout) masterNumbers() []int {
	var numbers []int
	for i := 1; i < masterPageOffset; i++ {
		made := exists(filepath.Join(l.masterDir(i), replicaFile))
		if i <= l.Masters && (made || !l.Made) && !l.takenOut(i) || i > l.Masters && l.joined(i) {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// takenOut reports whether master i has heard that it is no longer a member of the cell.
func (l layout) takenOut(i int) bool {
	return exists(filepath.Join(l.masterDir(i), replicaFile)) && !exists(filepath.Join(l.masterDir(i), authorityName))
}

// joined reports whether master i has joined the cell, at the address that belongs to its number.
func (l layout) joined(i int) bool {
	if !exists(filepath.Join(l.masterDir(i), replicaFile)) || l.takenOut(i) {
		return false
	}
	id, err := checkpoint.ReadIdentity(nil, l.masterDir(i))
	return err == nil && slices.ContainsFunc(id.Members, func(m *borgpb.Member) bool {
		return m.Id == uint64(i) && id.Replica == m.Id && m.Addr == l.masterAddr(i)
	})
}

// eachMaster names something of all masters: the first and the last where no number between
// them is missing.
func (l layout) eachMaster(name func(i int) string) string {
	var names []string
	numbers := l.masterNumbers()
	for _, i := range numbers {
		names = append(names, name(i))
	}
	if n := len(numbers); n > 1 && numbers[n-1]-numbers[0] == n-1 {
		return names[0] + " to " + names[n-1]
	}
	return strings.Join(names, ", ")
}

// authorityFile is where a master keeps the cell's authority.
func (l layout) authorityFile() string {
	for _, i := range l.masterNumbers() {
		if path := filepath.Join(l.masterDir(i), authorityName); exists(path) {
			return path
		}
	}
	return filepath.Join(l.masterDir(1), authorityName)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// initMaster makes the directory of a replica, once. A half-made one, left by
// a kill, holds nothing yet and is made again.
func (c *Cell) initMaster(ctx context.Context, i int) error {
	dir := c.masterDir(i)
	if exists(filepath.Join(dir, replicaFile)) {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	var members []string
	for j := 1; j <= c.Masters; j++ {
		members = append(members, fmt.Sprintf("%d=%s", j, c.masterAddr(j)))
	}
	cmd := exec.CommandContext(ctx, c.bin("borgmaster"), "init", "--dir", dir, "--cell", c.Name, "--cell-id", c.CellID,
		"--replica", fmt.Sprint(i), "--members", strings.Join(members, ","), "--admin", c.user)
	if authority := c.authorityFile(); exists(authority) {
		cmd.Args = append(cmd.Args, "--authority", authority)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// StartMaster starts replica i and returns when it serves.
func (c *Cell) StartMaster(ctx context.Context, i int) error {
	name, listen := c.masterName(i), c.listenAddr(c.masterAddr(i))
	args := []string{"serve", "--dir", c.masterDir(i), "--run-dir", c.runOf(name), "--listen", listen, "--http", c.masterPage(i), "--log-format", "text"}
	for _, url := range c.MetricGates {
		args = append(args, "--metric-gates", url)
	}
	err := c.startAndServe(ctx, processSpec{
		Name: name, Path: c.bin("borgmaster"), LogPath: c.logPath(name), Env: []string{c.envMark()}, Args: args,
		Over: func() bool { return c.takenOut(i) },
	}, listen)
	if err != nil && c.takenOut(i) {
		// It heard so from the others when it started.
		return nil
	}
	return err
}

// StartMasters starts all replicas and waits until one is elected.
func (c *Cell) StartMasters(ctx context.Context) error {
	numbers := c.masterNumbers()
	errs := make(chan error, len(numbers))
	for _, i := range numbers {
		go func() { errs <- c.StartMaster(ctx, i) }()
	}
	var err error
	for range numbers {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, serveWait)
	defer cancel()
	return until(ctx, "a master is elected", func(ctx context.Context) error {
		if err := c.crash(); err != nil {
			return err
		}
		_, err := c.Elected(ctx)
		return err
	})
}

// writeCellFile says where the masters are that run here.
func (c *Cell) writeCellFile() error { return c.writeMasters(c.masterAddrs()) }

func (c *Cell) writeMasters(addrs []string) error {
	return client.WriteCellFile(c.cellFile(), &client.CellFile{
		Cell: c.Name, CellID: c.CellID, Masters: addrs, Identity: filepath.Base(c.identityFile()),
	})
}

// lookAtMasters is how often it is asked whether the cell has other masters.
const lookAtMasters = time.Second

// followMasters writes the cell file again, until ctx ends, when masters were taken out or have joined.
func (c *Cell) followMasters(ctx context.Context) {
	tick := time.NewTicker(lookAtMasters)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := c.nameMasters(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("the cell file does not name the masters", "err", err)
		}
	}
}

// nameMasters has the cell file name the masters that the elected one knows.
func (c *Cell) nameMasters(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, serveWait)
	defer cancel()
	resp, err := c.client.ListMembers(ctx)
	if err != nil {
		return nil // Nobody is elected; the next look may see one.
	}
	var addrs []string
	for _, m := range resp.Members {
		addrs = append(addrs, m.GetMember().GetAddr())
	}
	has, err := client.ReadCellFile(c.cellFile())
	if err != nil || len(addrs) == 0 || slices.Equal(slices.Sorted(slices.Values(addrs)), slices.Sorted(slices.Values(has.Masters))) {
		return err
	}
	return c.writeMasters(addrs)
}

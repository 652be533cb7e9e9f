package sockets

import (
	"strconv"
	"strings"
)

// Netlink adds the sockets of /proc/net/netlink to unread: the bytes that are queued for each,
// by its inode. Sockets of the kernel itself are left out.
func Netlink(text string, unread map[string]int64) {
	for line := range strings.Lines(text) {
		// sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
		f := strings.Fields(line)
		if len(f) < 10 || f[9] == "0" {
			continue
		}
		if bytes, err := strconv.ParseInt(f[4], 10, 64); err == nil {
			unread[f[9]] = bytes
		}
	}
}

// Row is a socket of TCP or UDP.
type Row struct {
	Port uint16
	// Listens: it is of TCP and waits for connections.
	Listens bool
	// Bytes that are queued for it.
	Unread int64
}

// Table is the sockets of a network that a process has, by inode, and the ports that are in
// use, also by closed connections, which no process has.
type Table struct {
	Sockets map[string]Row
	Ports   map[uint16]bool
}

// listening is how the kernel calls a TCP socket that listens.
const listening = "0A"

// Add adds one of the files tcp, tcp6, udp and udp6 of /proc/net.
func (t *Table) Add(text string) {
	if t.Sockets == nil {
		t.Sockets, t.Ports = map[string]Row{}, map[uint16]bool{}
	}
	for line := range strings.Lines(text) {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...
		f := strings.Fields(line)
		if len(f) < 10 {
			continue
		}
		_, hexPort, _ := strings.Cut(f[1], ":")
		_, hexUnread, _ := strings.Cut(f[4], ":")
		port, err := strconv.ParseUint(hexPort, 16, 16)
		unread, unreadErr := strconv.ParseInt(hexUnread, 16, 64)
		if err != nil || unreadErr != nil {
			continue
		}
		t.Ports[uint16(port)] = true
		if f[9] != "0" {
			t.Sockets[f[9]] = Row{Port: uint16(port), Listens: f[3] == listening, Unread: unread}
		}
	}
}

// UDPPages reads the pages that are queued for all UDP sockets of the machine from
// /proc/net/sockstat; zero if it does not say.
func UDPPages(text string) (pages int64) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 5 && f[0] == "UDP:" && f[3] == "mem" {
			pages, _ = strconv.ParseInt(f[4], 10, 64)
		}
	}
	return pages
}

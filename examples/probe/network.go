//go:build linux

package main

import (
	"net"
	"os"
	"slices"
	"strings"
)

// network looks at whose network it is: whose devices there are, in it and in /sys, and
// whose sockets can be reached that are no files.
func (p *probe) network() {
	var names []string
	list, err := net.Interfaces()
	for _, d := range list {
		names = append(names, d.Name)
	}
	p.tell("network.devices", "%s", p.devices(names, err))
	names = nil
	entries, err := os.ReadDir("/sys/class/net")
	for _, e := range entries {
		names = append(names, e.Name())
	}
	p.tell("network.devices-in-sys", "%s", p.devices(names, err))
	conn, err := net.Dial("unix", "@"+p.out.socket)
	p.try("network.machine-socket", err)
	if err == nil {
		conn.Close()
	}
}

// devices says whose they are, or names them.
func (p *probe) devices(names []string, err error) string {
	slices.Sort(names)
	switch text := strings.Join(names, " "); {
	case err != nil:
		return outcome(err)
	case text == p.out.devices:
		return "the machine's"
	default:
		return orNone(text)
	}
}

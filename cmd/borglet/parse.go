package main

import (
	"fmt"
	"math"
	"net"
	"runtime"
	"strconv"
	"strings"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/proto/borgpb"
)

// parseCapacity reads "cpu=2,mem=4GiB,disk=20GiB"; what is not said is nil or
// zero.
func parseCapacity(text string) (*borgpb.Resources, error) {
	r := &borgpb.Resources{}
	if text == "" {
		return r, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("%q: want cpu=, mem= or disk= and an amount", part)
		}
		var err error
		switch strings.TrimSpace(key) {
		case "cpu":
			r.CpuMilli, err = parseCPU(value)
		case "mem":
			r.MemBytes, err = cli.ParseBytes(value)
		case "disk":
			r.DiskBytes, err = cli.ParseBytes(value)
		default:
			return nil, fmt.Errorf("%q: want cpu, mem or disk", key)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return r, nil
}

// parseExclusiveCores is how many cores tasks may have alone. Who offers less than the
// machine's processors shares it with others, who know nothing of this borglet's tasks.
func parseExclusiveCores(ctx *ucli.Context, capacity *borgpb.Resources) (int, error) {
	const name = "exclusive-cores"
	if n := ctx.Int(name); n < 0 {
		return 0, cli.Errorf(cli.Usage, "--%s %d is negative", name, n)
	} else if ctx.IsSet(name) {
		return n, nil
	}
	if cpu := capacity.GetCpuMilli(); cpu != 0 && cpu < int64(runtime.NumCPU())*1000 {
		return 0, nil
	}
	return runtime.NumCPU(), nil
}

// override replaces amounts of have by those that want names.
func override(have, want *borgpb.Resources) {
	if want.GetCpuMilli() != 0 {
		have.CpuMilli = want.CpuMilli
	}
	if want.GetMemBytes() != 0 {
		have.MemBytes = want.MemBytes
	}
	if want.GetDiskBytes() != 0 {
		have.DiskBytes = want.DiskBytes
	}
}

// parseCPU reads cores ("2", "0.5") or thousandths of them ("500m").
func parseCPU(text string) (int64, error) {
	text = strings.TrimSpace(text)
	if milli, ok := strings.CutSuffix(text, "m"); ok {
		n, err := strconv.ParseInt(milli, 10, 64)
		if err != nil || n <= 0 {
			return 0, fmt.Errorf("%q: want thousandths of a core such as 500m", text)
		}
		return n, nil
	}
	cores, err := strconv.ParseFloat(text, 64)
	if err != nil || !(cores > 0 && cores < 1e6) {
		return 0, fmt.Errorf("%q: want cores such as 2 or 0.5", text)
	}
	return int64(math.Round(cores * 1000)), nil
}

// checkAddr says whether an address has a port; its host may be left out only
// by what one listens on.
func checkAddr(flag, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	n, notNumber := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil || notNumber != nil:
		return cli.Errorf(cli.Usage, "%s %q: want an address HOST:PORT", flag, addr)
	case flag != "--listen" && (host == "" || n == 0):
		return cli.Errorf(cli.Usage, "%s %q: want the HOST:PORT that others reach", flag, addr)
	}
	return nil
}

func parseAttrs(list []string) (map[string]string, error) {
	attrs := make(map[string]string, len(list))
	for _, pair := range list {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q: want KEY=VALUE", pair)
		}
		attrs[key] = value
	}
	return attrs, nil
}

func parsePorts(text string) (ports [2]uint32, err error) {
	first, last, ok := strings.Cut(text, "-")
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if !ok || errA != nil || errB != nil || a == 0 || a > b {
		return ports, fmt.Errorf("%q: want FIRST-LAST, such as 20000-29999", text)
	}
	return [2]uint32{uint32(a), uint32(b)}, nil
}

// parseProtectedPorts reads lists of ports.
func parseProtectedPorts(lists []string) (ports []uint16, err error) {
	for _, text := range lists {
		for part := range strings.SplitSeq(text, ",") {
			n, err := strconv.ParseUint(strings.TrimSpace(part), 10, 16)
			if err != nil || n == 0 {
				return nil, fmt.Errorf("%q: want ports, such as 8080,9090", text)
			}
			ports = append(ports, uint16(n))
		}
	}
	if len(ports) > maxProtectedPorts {
		return nil, fmt.Errorf("%d ports: want at most %d", len(ports), maxProtectedPorts)
	}
	return ports, nil
}

// parseTaskIDs reads the user ids of tasks. The machine's own are below 65536, and
// the last of all means nobody.
func parseTaskIDs(text string) (ids [2]uint32, err error) {
	first, last, ok := strings.Cut(text, "-")
	a, errA := strconv.ParseUint(first, 10, 32)
	b, errB := strconv.ParseUint(last, 10, 32)
	if !ok || errA != nil || errB != nil || a < 1<<16 || b > 1<<32-2 || b < a+1<<16-1 {
		return ids, fmt.Errorf("%q: want FIRST-LAST, from 65536 to 4294967294, and at least 65536 of them", text)
	}
	return [2]uint32{uint32(a), uint32(b)}, nil
}

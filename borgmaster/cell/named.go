package cell

import (
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// formatNamedAmounts is the format in which an op began to change some amounts of a quota or of
// bounds and leave the rest.
const formatNamedAmounts = FormatStateBudgets

// Names of amounts in an op that changes some of them; a device is namedDevice and its name.
const (
	namedCPU      = "cpu"
	namedMem      = "mem"
	namedDisk     = "disk"
	namedDiskRate = "disk-rate"
	namedDevice   = "device/"
	namedExpires  = "expires"
)

// maxNamed bounds what an op names: each amount of each of three bounds.
const maxNamed = 3 * (4 + maxDevices)

// checkNamed refuses too many names, and one that comes twice.
func checkNamed(only []string) *borgpb.Refusal {
	if len(only) > maxNamed {
		return limit("only", "%d amounts are named; at most %d", len(only), maxNamed)
	}
	seen := make(map[string]bool, len(only))
	for _, name := range only {
		if seen[name] {
			return invalid("only", "%q is named twice", clip(name, 64))
		}
		seen[name] = true
	}
	return nil
}

// setNamed puts one amount of a vector into another, and returns false if the name is of none.
func (r *Resources) setNamed(name string, from *Resources) bool {
	switch name {
	case namedCPU:
		r.CPUMilli = from.CPUMilli
	case namedMem:
		r.MemBytes = from.MemBytes
	case namedDisk:
		r.DiskBytes = from.DiskBytes
	case namedDiskRate:
		r.DiskBytesPerS = from.DiskBytesPerS
	default:
		device, ok := strings.CutPrefix(name, namedDevice)
		if !ok || !validName(device) {
			return false
		}
		is := func(d Device) bool { return d.Name == device }
		// The vector that it was may share its devices.
		devices := slices.DeleteFunc(slices.Clone(r.Devices), is)
		if at := slices.IndexFunc(from.Devices, is); at >= 0 {
			devices = append(devices, from.Devices[at])
		}
		slices.SortFunc(devices, func(a, b Device) int { return strings.Compare(a.Name, b.Name) })
		r.Devices = devices
	}
	return true
}

// mergedQuota is a quota as an op wants it: what the op names, and the rest as it is. q is nil
// if there is none.
func (c *Cell) mergedQuota(q *Quota, o *borgpb.SetQuota) (limit Resources, expiresWallNs int64, _ *borgpb.Refusal) {
	grant := FromProto(o.Limit)
	if len(o.Only) == 0 {
		return grant, o.ExpiresWallNs, nil
	}
	if r := checkNamed(o.Only); r != nil {
		return limit, 0, r
	}
	if q != nil {
		limit, expiresWallNs = q.limit, q.expiresWallNs
	}
	for _, name := range o.Only {
		if name == namedExpires {
			expiresWallNs = o.ExpiresWallNs
		} else if !limit.setNamed(name, &grant) {
			return limit, 0, invalid("only", "%q is no amount of a quota", clip(name, 64))
		}
	}
	if q != nil && c.Expired(q) && !slices.Contains(o.Only, namedExpires) {
		return limit, 0, invalid("expires_wall_ns", "the quota has expired; say until when it is granted again: borgcfg quota set %s %s --for 90d, or --for 0 until it is taken back", o.User, BandName(o.Band))
	}
	return limit, expiresWallNs, checkQuotaLimit(limit.Proto())
}

// mergedBounds is the bounds of a user's tasks as an op wants them: what the op names, and the
// rest as it is. b is nil if there are none.
func mergedBounds(b *TaskBounds, o *borgpb.SetTaskLimits) (lo, otherwise, hi Resources, _ *borgpb.Refusal) {
	from := [3]Resources{FromProto(o.Min), FromProto(o.Default), FromProto(o.Max)}
	if len(o.Only) == 0 {
		return from[0], from[1], from[2], nil
	}
	if r := checkNamed(o.Only); r != nil {
		return lo, otherwise, hi, r
	}
	var to [3]Resources
	if b != nil {
		to = [3]Resources{b.min, b.otherwise, b.max}
	}
	for _, name := range o.Only {
		bound, amount, _ := strings.Cut(name, "/")
		at := slices.Index([]string{"min", "default", "max"}, bound)
		if at < 0 || !to[at].setNamed(amount, &from[at]) {
			return lo, otherwise, hi, invalid("only", "%q is no amount of min, default or max", clip(name, 64))
		}
	}
	for at, field := range []string{"min", "default", "max"} {
		if r := checkResources(to[at].Proto(), field); r != nil {
			return lo, otherwise, hi, r
		}
	}
	return to[0], to[1], to[2], nil
}

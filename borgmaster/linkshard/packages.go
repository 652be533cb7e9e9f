package linkshard

import (
	"net"
	"slices"
	"strconv"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// maxWanted bounds the packages of one poll; more are told of when these are there.
const maxWanted = 64

// wantedPackages says from where a machine is to bring what copies need that should run
// there, and that it has not. A machine that has all costs a look at its list.
func wantedPackages(c *cell.Cell, m *cell.Machine, p *cell.Copy, list []*borgrpc.WantedPackage) []*borgrpc.WantedPackage {
	if c.Format() < cell.FormatPackages {
		return nil
	}
	for _, k := range p.TaskSpec().GetPackages() {
		told := func(w *borgrpc.WantedPackage) bool { return w.Digest == k.Digest }
		if m.HasPackage(k.Digest) || len(list) == maxWanted || slices.ContainsFunc(list, told) {
			continue
		}
		w := &borgrpc.WantedPackage{Digest: k.Digest}
		var peers []*cell.Machine
		peers, w.Origin = c.PackageSources(m, k.Digest)
		for _, o := range peers {
			if host, _, err := net.SplitHostPort(o.Addr()); err == nil {
				w.Peers = append(w.Peers, net.JoinHostPort(host, strconv.Itoa(int(o.PackagePort()))))
			}
		}
		w.Origin = w.Origin || len(w.Peers) == 0 && len(peers) > 0
		list = append(list, w)
	}
	return list
}

// changedPackages is what the cell should be told of a machine's packages; nil: nothing.
func changedPackages(present, word *borgpb.MachinePackages) *borgpb.PackageChange {
	o := &borgpb.PackageChange{Port: word.GetPort()}
	// A newer borglet may say more than a cell of this format takes.
	said := word.GetDigests()[:min(len(word.GetDigests()), cell.MaxMachinePackages)]
	for _, d := range said {
		if _, has := slices.BinarySearch(present.GetDigests(), d); !has {
			o.Add = append(o.Add, d)
		}
	}
	for _, d := range present.GetDigests() {
		if !slices.Contains(said, d) {
			o.Remove = append(o.Remove, d)
		}
	}
	if len(o.Add)+len(o.Remove) == 0 && o.Port == present.GetPort() {
		return nil
	}
	return o
}

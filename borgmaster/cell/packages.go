package cell

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// FormatPackages is the format in which machines began to say which packages they have.
const FormatPackages = 6

// MaxMachinePackages is how many packages a machine can say to have.
const MaxMachinePackages = maxMachinePackages

// firstAtOrigin is how many machines bring a package from where it comes from, while no
// machine serves it. All others wait for one of them.
const firstAtOrigin = 4

// maxPeers bounds the machines that one is told of that serve what it lacks.
const maxPeers = 4

// holders are the packages that any machine has, or lacks for a task, by digest.
type holders map[string]*holding

// holding is a package.
type holding struct {
	// Machines that have it, by name.
	have []*Machine
	// Copies bound to a spec that names it, on machines that do not have it, ordered by
	// CopyID: who was first keeps its turn when others come.
	lack []*Copy
}

func (h holders) of(digest string) *holding {
	one := h[digest]
	if one == nil {
		one = new(holding)
		h[digest] = one
	}
	return one
}

func (h holders) drop(digest string) {
	if one := h[digest]; one != nil && len(one.have)+len(one.lack) == 0 {
		delete(h, digest)
	}
}

func (h holders) add(digest string, m *Machine) {
	one := h.of(digest)
	if at, found := slices.BinarySearchFunc(one.have, m.name, compareMachine); !found {
		one.have = slices.Insert(one.have, at, m)
	}
}

func (h holders) remove(digest string, m *Machine) {
	one := h.of(digest)
	if at, found := slices.BinarySearchFunc(one.have, m.name, compareMachine); found {
		one.have = slices.Delete(one.have, at, at+1)
	}
	h.drop(digest)
}

// want notes which packages a copy lacks where it is, and unwant that it does not ask
// for them any more.
func (c *Cell) want(p *Copy) { c.eachLack(p, c.holders.lack) }

func (c *Cell) unwant(p *Copy) { c.eachLack(p, c.holders.served) }

func (c *Cell) eachLack(p *Copy, do func(digest string, p *Copy)) {
	if p.spec == nil {
		return
	}
	for _, k := range p.TaskSpec().GetPackages() {
		if validDigest(k.Digest) && !p.machine.HasPackage(k.Digest) {
			do(k.Digest, p)
		}
	}
}

func (h holders) lack(digest string, p *Copy) {
	one := h.of(digest)
	if at, found := slices.BinarySearchFunc(one.lack, p.ID(), compareCopy); !found {
		one.lack = slices.Insert(one.lack, at, p)
	}
}

func (h holders) served(digest string, p *Copy) {
	one := h.of(digest)
	if at, found := slices.BinarySearchFunc(one.lack, p.ID(), compareCopy); found {
		one.lack = slices.Delete(one.lack, at, at+1)
	}
	h.drop(digest)
}

// PackageSources says from where a machine that lacks a package is to bring it: from
// machines that serve it, in this order, or from where packages come from. It follows
// from the cell alone, so that all who poll machines say the same.
//
// While nobody serves it, the machines of the first copies that lack it bring it from
// where it comes from; so few that this is spared, and more than one so that the death
// of one holds up nobody.
func (c *Cell) PackageSources(m *Machine, digest string) (peers []*Machine, origin bool) {
	one := c.holders[digest]
	if one == nil {
		return nil, true
	}
	// Each begins elsewhere, so that all are asked alike.
	h := fnv.New64a()
	h.Write([]byte(digest + m.name))
	n := len(one.have)
	for i := range n {
		if o := one.have[(int(h.Sum64()%uint64(n))+i)%n]; o != m && !o.down && o.packagePort != 0 {
			if peers = append(peers, o); len(peers) == maxPeers {
				break
			}
		}
	}
	if len(peers) > 0 {
		return peers, false
	}
	var first [firstAtOrigin]*Machine
	turns := first[:0]
	for _, p := range one.lack {
		if p.machine.down || slices.Contains(turns, p.machine) {
			continue
		}
		if p.machine == m {
			return nil, true
		}
		if turns = append(turns, p.machine); len(turns) == firstAtOrigin {
			return nil, false
		}
	}
	return nil, true
}

// validDigest: others are of no package that can be brought.
func validDigest(digest string) bool {
	hex, is := strings.CutPrefix(digest, "sha256:")
	return is && len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == ""
}

func checkPackages(field string, port uint32, digests []string) *borgpb.Refusal {
	if port > 65535 {
		return invalid(field+".port", "%d is no port", port)
	}
	if len(digests) > maxMachinePackages {
		return limit(field, "%d packages; at most %d", len(digests), maxMachinePackages)
	}
	for _, d := range digests {
		if !validDigest(d) {
			return invalid(field, "%q: want sha256: and 64 hexadecimal digits", clip(d, 80))
		}
	}
	return nil
}

func checkPackageChange(m *Machine, o *borgpb.PackageChange) *borgpb.Refusal {
	if o == nil {
		return nil
	}
	if r := checkPackages("packages", o.Port, o.Add); r != nil {
		return r
	}
	if n := len(changedPackages(m, o)); n > maxMachinePackages {
		return limit("packages", "it would have %d packages; at most %d", n, maxMachinePackages)
	}
	return nil
}

// changedPackages are those that a machine has after a change, sorted.
func changedPackages(m *Machine, o *borgpb.PackageChange) []string {
	var list []string
	for _, d := range m.packages {
		if !slices.Contains(o.Remove, d) {
			list = append(list, d)
		}
	}
	list = append(list, o.Add...)
	slices.Sort(list)
	return slices.Compact(list)
}

// setPackages tells whether anything of it was new.
func (c *Cell) setPackages(m *Machine, o *borgpb.PackageChange) bool {
	list := changedPackages(m, o)
	port := uint16(o.Port)
	if slices.Equal(list, m.packages) && port == m.packagePort {
		return false
	}
	for _, p := range m.copies {
		c.unwant(p)
	}
	for _, d := range m.packages {
		if _, stays := slices.BinarySearch(list, d); !stays {
			c.holders.remove(d, m)
		}
	}
	for _, d := range list {
		if !m.HasPackage(d) {
			c.holders.add(d, m)
		}
	}
	m.packages, m.packagePort = list, port
	for _, p := range m.copies {
		c.want(p)
	}
	return true
}

// PackagesProto is what it says of its packages; nil: nothing.
func (m *Machine) PackagesProto() *borgpb.MachinePackages {
	if len(m.packages) == 0 && m.packagePort == 0 {
		return nil
	}
	return &borgpb.MachinePackages{Port: uint32(m.packagePort), Digests: m.packages}
}

// checkHolders makes the index anew and compares.
func (c *Cell) checkHolders() error {
	fresh := Cell{holders: make(holders)}
	for _, m := range c.machineList {
		if len(m.packages)+int(m.packagePort) > 0 && c.format < FormatPackages {
			return fmt.Errorf("machine %s has packages in format %d", m.name, c.format)
		}
		for _, d := range m.packages {
			fresh.holders.add(d, m)
		}
		for _, p := range m.copies {
			fresh.want(p)
		}
	}
	if !maps.EqualFunc(fresh.holders, c.holders, func(a, b *holding) bool {
		return slices.Equal(a.have, b.have) && slices.Equal(a.lack, b.lack)
	}) {
		return fmt.Errorf("of %d packages it is kept who has or lacks them, and it is so of %d, or others do", len(c.holders), len(fresh.holders))
	}
	return nil
}

func (e *encoder) packages(m *Machine) {
	if len(m.packages) == 0 && m.packagePort == 0 {
		return
	}
	e.byte(tagPackages)
	e.uint(uint64(m.packagePort))
	e.uint(uint64(len(m.packages)))
	for _, d := range m.packages {
		e.str(d)
	}
}

func (l *loader) packages(d *decoder, m *Machine) error {
	if l.c.format < FormatPackages || !d.tagged(tagPackages) {
		return nil
	}
	m.packagePort = d.uint16()
	for range d.count() {
		digest := d.str()
		if n := len(m.packages); !validDigest(digest) || n == maxMachinePackages || n > 0 && m.packages[n-1] >= digest {
			return errOdd
		}
		m.packages = append(m.packages, digest)
	}
	if len(m.packages) == 0 && m.packagePort == 0 {
		return errOdd
	}
	return nil
}

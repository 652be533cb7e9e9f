package cell

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"borg/proto/borgpb"
)

func (v *Volume) appendKey(b []byte) []byte {
	return append(append(b, kindVolume), v.orderKey().text()...)
}
func (v *Volume) exists() bool { return !v.gone }

// Flags of a volume's record.
const (
	volumeGivenUp = 1 << iota
	volumeSpare

	// The band is in the bits above.
	volumeBandShift = 2
)

func (v *Volume) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.int(v.diskBytes)
	e.int(v.keepNs)
	e.int(v.untilNs)
	e.int(v.madeWallNs)
	flags := byte(0)
	if v.givenUp {
		flags |= volumeGivenUp
	}
	if v.spare {
		flags |= volumeSpare
	}
	e.byte(flags | byte(v.band)<<volumeBandShift)
	e.str(v.reason)
	return e.b
}

// text is how a record's key says it: its order is that of the volumes.
func (k volumeID) text() string {
	const digits = 8
	index := strconv.FormatUint(uint64(k.of.Index), 16)
	return k.of.Job.User + "\x00" + k.of.Job.Name + "\x00" + strings.Repeat("0", digits-len(index)) + index + "\x00" + k.name + "\x00" + k.machine
}

// readVolumeKey reads what text writes.
func readVolumeKey(key string) (id volumeID, ok bool) {
	parts := strings.Split(key, "\x00")
	if len(parts) != 5 {
		return id, false
	}
	index, err := strconv.ParseUint(parts[2], 16, 32)
	id = volumeID{TaskID{JobKey{parts[0], parts[1]}, uint32(index)}, parts[3], parts[4]}
	return id, err == nil && id.text() == key
}

func (l *loader) volume(key string, d *decoder) error {
	id, ok := readVolumeKey(key)
	of, name := id.of, id.name
	v := &Volume{of: of, name: name, machine: l.c.machines[id.machine], diskBytes: d.int(), keepNs: d.int(), untilNs: d.int(), madeWallNs: d.int()}
	flags := d.byte()
	v.givenUp, v.spare, v.band, v.reason = flags&volumeGivenUp != 0, flags&volumeSpare != 0, borgpb.Band(flags>>volumeBandShift), d.str()
	if err := d.done(); err != nil {
		return err
	}
	if !ok || l.c.format < FormatVolumes || checkKey(of.Job) != nil || !validName(name) || int(v.band) > numBands || v.band != 0 && l.c.format < FormatVolumesYield ||
		v.diskBytes < 0 || v.diskBytes > maxDiskBytes || v.keepNs < 0 || v.keepNs > maxVolumeKeepNs || v.untilNs < 0 || v.untilNs > maxTimeNs {
		return errOdd
	}
	if v.machine == nil || v.machine.volumeOn(of, name) != nil {
		return errors.New("a volume on no machine")
	}
	l.c.addVolume(v)
	l.c.setVolumeDue(v)
	return nil
}

// uses is what a copy works in: volumes of its task or of its alloc, as they were when
// it was placed.
type uses struct {
	of    TaskID
	names []string
}

// uses writes in which volumes a copy works, if in any.
func (e *encoder) uses(p *Copy) {
	if p.few == nil || p.few.uses == nil {
		return
	}
	u := p.few.uses
	e.byte(tagUses)
	e.str(u.of.Job.User)
	e.str(u.of.Job.Name)
	e.uint(uint64(u.of.Index))
	e.uint(uint64(len(u.names)))
	for _, name := range u.names {
		e.str(name)
	}
}

func (l *loader) uses(d *decoder, p *Copy) error {
	if l.c.format < FormatVolumes || !d.tagged(tagUses) {
		return nil
	}
	u := &uses{of: TaskID{JobKey{d.str(), d.str()}, d.uint32()}}
	for range d.count() {
		u.names = append(u.names, d.str())
	}
	if len(u.names) == 0 || len(u.names) > maxVolumesOfTask || checkKey(u.of.Job) != nil {
		return errOdd
	}
	p.rare().uses = u
	return nil
}

// checkVolumes checks the volumes, and that who works in some is where they are.
func (c *Cell) checkVolumes() error {
	n := 0
	for _, m := range c.machineList {
		n += len(m.volumes)
		yielding := 0
		for _, v := range m.volumes {
			if v.yields {
				yielding++
			}
		}
		if yielding != m.yielding {
			return fmt.Errorf("%d volumes of %s yield, counted as %d", yielding, m.name, m.yielding)
		}
		for _, p := range m.copies {
			if err := c.checkUses(p); err != nil {
				return err
			}
		}
	}
	if n != c.volumes.list.len() || !c.volumes.list.wellFormed() {
		return fmt.Errorf("there are %d volumes, and %d on machines", c.volumes.list.len(), n)
	}
	var last *Volume
	for v := range c.volumes.list.each() {
		used, before := c.used(v), last
		last = v
		switch {
		case v.gone || c.machines[v.machine.name] != v.machine || v.machine.volumeOn(v.of, v.name) != v || before != nil && before.orderKey().Compare(v.orderKey()) >= 0:
			return fmt.Errorf("volume %s on %s is not indexed as it should be", v.FullName(), v.machine.name)
		case c.format < FormatVolumes:
			return fmt.Errorf("volume %s is of a later format", v.FullName())
		case v.counts() && c.volumeNamed(v.of, v.name) != v:
			return fmt.Errorf("volume %s is on %s, and on another machine", v.FullName(), v.machine.name)
		case !v.givenUp && used != (v.untilNs == 0):
			return fmt.Errorf("volume %s is used: %v, and kept until %d", v.FullName(), used, v.untilNs)
		case v.givenUp && (v.untilNs != 0 || v.spare):
			return fmt.Errorf("volume %s was given up and is kept until %d", v.FullName(), v.untilNs)
		case v.untilNs != 0 && (v.untilNs <= c.clock.cellNs || v.dueNs == 0 || v.dueNs > v.untilNs):
			return fmt.Errorf("volume %s should have been given up at %d, it is %d, and due at %d", v.FullName(), v.untilNs, c.clock.cellNs, v.dueNs)
		case v.dueNs != 0 && !c.volumes.dues.has(v.dueNs, v):
			return fmt.Errorf("volume %s is due at %d, and nothing looks at it then", v.FullName(), v.dueNs)
		case c.checkYield(v) != nil:
			return c.checkYield(v)
		case v.machine.givesUp() && v.untilNs != 0:
			return fmt.Errorf("volume %s is kept on %s, which is emptied of volumes too", v.FullName(), v.machine.name)
		}
	}
	return c.checkVolumeCharges()
}

// checkUses wants the volumes of a copy that may be current where it is.
func (c *Cell) checkUses(p *Copy) error {
	if p.few == nil || p.few.uses == nil {
		return nil
	}
	u := p.few.uses
	if c.format < FormatVolumes || len(u.names) == 0 || p.alloc != nil && u.of != (TaskID{p.alloc.set.key, p.alloc.index}) {
		return fmt.Errorf("copy %v works in volumes of %v", p.ID(), u.of)
	}
	for _, name := range u.names {
		if v := p.machine.volumeOn(u.of, name); p.state.current() && p.alloc == nil && (v == nil || v.givenUp) {
			return fmt.Errorf("copy %v works in volume %s, which is not on %s", p.ID(), name, p.machine.name)
		}
	}
	return nil
}

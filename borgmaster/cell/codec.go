package cell

import (
	"encoding/binary"
	"errors"
	"slices"
	"unicode/utf8"
)

// encoder writes the fields of a record, in a fixed order: numbers as varints
// (signed ones zigzag), strings and bytes after their length, lists and maps
// after their count, maps by ascending key. Each value has one encoding only.
type encoder struct{ b []byte }

func (e *encoder) uint(n uint64) { e.b = binary.AppendUvarint(e.b, n) }
func (e *encoder) int(n int64)   { e.b = binary.AppendVarint(e.b, n) }
func (e *encoder) byte(n byte)   { e.b = append(e.b, n) }

func (e *encoder) bool(v bool) {
	if v {
		e.b = append(e.b, 1)
	} else {
		e.b = append(e.b, 0)
	}
}

func (e *encoder) str(s string) {
	e.uint(uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) bytes(s []byte) {
	e.uint(uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) strs(m map[string]string) {
	e.uint(uint64(len(m)))
	for _, k := range sortedKeys(m) {
		e.str(k)
		e.str(m[k])
	}
}

func (e *encoder) uid(u UID) {
	e.uint(u.Epoch)
	e.uint(u.Index)
	e.uint(uint64(u.N))
}

func (e *encoder) resources(r *Resources) {
	e.int(r.CPUMilli)
	e.int(r.MemBytes)
	e.int(r.DiskBytes)
	e.int(r.DiskBytesPerS)
	e.int(r.Ports)
	e.uint(uint64(len(r.Devices)))
	for _, d := range r.Devices {
		e.str(d.Name)
		// Whole ones by their number; a share as a negative number of thousandths.
		if d.Milli < wholeDevice {
			e.int(-d.Milli)
		} else {
			e.int(d.Milli / wholeDevice)
		}
	}
}

// Fields that came later stand behind the others, each under a tag of its own,
// ascending, and only if there is something to say: what was written before
// they came reads as it did.
const (
	// Of an alloc or a copy.
	tagDevices = 1
	// Of a copy.
	tagNote        = 2
	tagReservation = 3
	// Of a task, behind those of its copy: tags of both ascend by themselves.
	tagDisrupted = 4
	tagCrashes   = 5
	tagRetries   = 6
	// Of a copy that is or was watched; and of an update.
	tagUpSince = 190
	tagRollout = 190
	tagPace    = 200
	// Of a copy, in this order.
	tagQuarantine = 200
	tagNotice     = 215
	// Of a copy that makes room for work of its own user; it has no value.
	tagOwnStop = 220
	// Of a copy: its own address.
	tagAddr = 230
	// Of a copy: in which volumes it works.
	tagUses = 235
	// Of a copy: why its last process was ended.
	tagExitReason = 240
	// Of a copy: in which way it did not start, or was killed.
	tagExitWay = 245
	// Of a copy that stops: which alloc left it.
	tagLeft = 250
	// Of a machine that is emptied of volumes too; it has no value.
	tagGiveUp = 200
	// Of a machine.
	tagTaints   = 1
	tagHeard    = 2
	tagDrain    = 3
	tagPackages = 4
	// Of a machine, behind tagGiveUp: ports that others hold.
	tagHeldPorts = 201
	// Of a job; it has no value.
	tagEnabled = 1
	// Of a job: the slot whose run it is.
	tagSlot = 180
	// Of a job: what it was given before its labels or annotations were changed alone.
	tagGiven = 190
	// Of a spec; it has no value.
	tagCores = 225
	// Of a job: what it saves.
	tagSaving = 200
	// Of a user: an admin who has changed something since the grant; it has no value.
	tagProven = 1
	// Of an alloc set: what became of it since it was submitted, and what it was given.
	tagSetChanges = 1
	tagSetGiven   = 2
	// Of an alloc that is yet to become what its set says.
	tagBehind = 2
)

// taints writes what format 3 added to them.
func (e *encoder) taints(ts []Taint) {
	if !slices.ContainsFunc(ts, func(t Taint) bool { return t.PreferNot || t.SinceNs != 0 }) {
		return
	}
	e.byte(tagTaints)
	for _, t := range ts {
		e.bool(t.PreferNot)
		e.int(t.SinceNs)
	}
}

func (e *encoder) grants(gs []DeviceGrant) {
	if len(gs) == 0 {
		return
	}
	e.byte(tagDevices)
	e.uint(uint64(len(gs)))
	for _, g := range gs {
		e.str(g.Name)
		e.uint(uint64(g.Number))
		e.uint(uint64(g.Milli))
	}
}

func (e *encoder) reservation(r *reservation) {
	if r == nil {
		return
	}
	e.byte(tagReservation)
	e.int(r.cpuMilli)
	e.int(r.memBytes)
	e.int(r.setNs)
}

func (e *encoder) exit(x *Exit) {
	e.bool(x != nil)
	if x == nil {
		return
	}
	e.int(int64(x.Code))
	e.int(int64(x.Signal))
	e.bool(x.OOM)
	e.bool(x.Unknown)
	e.int(x.EndedWallNs)
	e.str(x.Error)
}

// decoder reads what encoder writes and refuses everything else. After a first
// fault it only yields zeros; done tells.
type decoder struct {
	b   []byte
	bad bool
}

var errOdd = errors.New("not encoded as this build writes it")

// done tells whether all was read and well formed.
func (d *decoder) done() error {
	if d.bad || len(d.b) > 0 {
		return errOdd
	}
	return nil
}

// more tells whether anything is left.
func (d *decoder) more() bool { return !d.bad && len(d.b) > 0 }

func (d *decoder) uint() uint64 {
	n, size := binary.Uvarint(d.b)
	// A varint whose last byte is zero has a shorter encoding.
	if size <= 0 || (size > 1 && d.b[size-1] == 0) {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[size:]
	return n
}

func (d *decoder) int() int64 {
	n := d.uint()
	return int64(n>>1) ^ -int64(n&1)
}

// upTo reads a number that must not be over limit.
func (d *decoder) upTo(limit uint64) uint64 {
	n := d.uint()
	if n > limit {
		d.bad, d.b = true, nil
		return 0
	}
	return n
}

func (d *decoder) uint32() uint32 { return uint32(d.upTo(1<<32 - 1)) }
func (d *decoder) uint16() uint16 { return uint16(d.upTo(1<<16 - 1)) }

func (d *decoder) int32() int32 {
	n := d.int()
	if n != int64(int32(n)) {
		d.bad, d.b = true, nil
	}
	return int32(n)
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	n := d.b[0]
	d.b = d.b[1:]
	return n
}

func (d *decoder) bool() bool {
	n := d.byte()
	if n > 1 {
		d.bad, d.b = true, nil
	}
	return n == 1
}

// raw reads a length and that many bytes, which are copied.
func (d *decoder) raw() []byte {
	n := d.upTo(uint64(len(d.b)))
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	s := append([]byte(nil), d.b[:n]...)
	d.b = d.b[n:]
	return s
}

func (d *decoder) str() string {
	n := d.upTo(uint64(len(d.b)))
	if n > uint64(len(d.b)) || !utf8.Valid(d.b[:n]) {
		d.bad, d.b = true, nil
		return ""
	}
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

// count reads the length of a list whose items take at least one byte each.
func (d *decoder) count() int { return int(d.upTo(uint64(len(d.b)))) }

func (d *decoder) strs() map[string]string {
	n := d.count()
	if n == 0 {
		return nil
	}
	m := make(map[string]string, n)
	last := ""
	for i := range n {
		k := d.str()
		if i > 0 && k <= last {
			d.bad, d.b = true, nil
		}
		last = k
		m[k] = d.str()
	}
	return m
}

func (d *decoder) uid() UID { return UID{d.uint(), d.uint(), d.uint32()} }

func (d *decoder) resources() Resources {
	r := Resources{CPUMilli: d.int(), MemBytes: d.int(), DiskBytes: d.int(), DiskBytesPerS: d.int(), Ports: d.int()}
	for range d.count() {
		name, n := d.str(), d.int()
		if n > 0 {
			n = min(n, maxDeviceCount+1) * wholeDevice
		} else {
			n = -n
		}
		r.Devices = append(r.Devices, Device{name, n})
	}
	if checkResources(r.Proto(), "") != nil {
		d.bad, d.b = true, nil
	}
	return r
}

// tagged tells whether a field with that tag comes next.
func (d *decoder) tagged(tag byte) bool {
	if !d.more() || d.b[0] != tag {
		return false
	}
	d.b = d.b[1:]
	return true
}

func (d *decoder) taints(ts []Taint) {
	if !d.tagged(tagTaints) {
		return
	}
	said := false
	for i := range ts {
		ts[i].PreferNot, ts[i].SinceNs = d.bool(), d.int()
		said = said || ts[i].PreferNot || ts[i].SinceNs != 0
		if ts[i].SinceNs < 0 || ts[i].SinceNs > maxTimeNs {
			d.bad = true
		}
	}
	d.bad = d.bad || !said
}

func (d *decoder) grants() (gs []DeviceGrant) {
	if !d.tagged(tagDevices) {
		return nil
	}
	n := d.count()
	for range n {
		gs = append(gs, DeviceGrant{d.str(), d.uint32(), int64(d.upTo(wholeDevice))})
	}
	if n == 0 || !slices.IsSortedFunc(gs, compareGrants) {
		d.bad, d.b = true, nil
	}
	return gs
}

func (d *decoder) reservation() *reservation {
	if !d.tagged(tagReservation) {
		return nil
	}
	r := &reservation{d.int(), d.int(), d.int()}
	if r.cpuMilli < 0 || r.cpuMilli > maxCPUMilli || r.memBytes < 0 || r.memBytes > maxMemBytes || r.setNs < 0 || r.setNs > maxTimeNs {
		d.bad = true
	}
	return r
}

func (d *decoder) exit() *Exit {
	if !d.bool() {
		return nil
	}
	return &Exit{Code: d.int32(), Signal: d.int32(), OOM: d.bool(), Unknown: d.bool(), EndedWallNs: d.int(), Error: d.str()}
}

// Keys are big-endian, so that their order is that of the objects.

func appendUIDKey(b []byte, kind byte, u UID) []byte {
	b = append(b, kind)
	b = binary.BigEndian.AppendUint64(b, u.Epoch)
	b = binary.BigEndian.AppendUint64(b, u.Index)
	return binary.BigEndian.AppendUint32(b, u.N)
}

func appendIndexKey(b []byte, kind byte, u UID, index uint32) []byte {
	return binary.BigEndian.AppendUint32(appendUIDKey(b, kind, u), index)
}

// keyReader takes a key apart.
type keyReader struct {
	b   []byte
	bad bool
}

func (k *keyReader) uint64() uint64 {
	if len(k.b) < 8 {
		k.bad = true
		return 0
	}
	n := binary.BigEndian.Uint64(k.b)
	k.b = k.b[8:]
	return n
}

func (k *keyReader) uint32() uint32 {
	if len(k.b) < 4 {
		k.bad = true
		return 0
	}
	n := binary.BigEndian.Uint32(k.b)
	k.b = k.b[4:]
	return n
}

func (k *keyReader) uid() UID { return UID{k.uint64(), k.uint64(), k.uint32()} }

func (k *keyReader) done() error {
	if k.bad || len(k.b) > 0 {
		return errors.New("an odd key")
	}
	return nil
}

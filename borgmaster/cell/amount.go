package cell

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// amount is a sum that does not overflow: of 2^32 tasks that each ask for as much as
// a number can say, it still is exact.
type amount struct{ hi, lo uint64 }

func amountOf(n int64, times uint64) (a amount) {
	a.hi, a.lo = bits.Mul64(uint64(n), times)
	return a
}

func (a amount) isZero() bool { return a == amount{} }

func (a amount) compare(o amount) int {
	return cmp.Or(cmp.Compare(a.hi, o.hi), cmp.Compare(a.lo, o.lo))
}

func (a amount) plus(o amount) amount {
	lo, carry := bits.Add64(a.lo, o.lo, 0)
	hi, over := bits.Add64(a.hi, o.hi, carry)
	if over != 0 {
		panic("an amount beyond all that can be asked for")
	}
	return amount{hi, lo}
}

// minus is what is left of a, nothing if o is more.
func (a amount) minus(o amount) amount {
	if a.compare(o) <= 0 {
		return amount{}
	}
	lo, borrow := bits.Sub64(a.lo, o.lo, 0)
	hi, _ := bits.Sub64(a.hi, o.hi, borrow)
	return amount{hi, lo}
}

// milli is so many thousandths of a, rounded down.
func (a amount) milli(n uint64) amount {
	over, hi := bits.Mul64(a.hi, n)
	carry, lo := bits.Mul64(a.lo, n)
	hi, more := bits.Add64(hi, carry, 0)
	if over+more != 0 {
		panic("an amount beyond all that can be granted")
	}
	q, r := bits.Div64(0, hi, 1000)
	low, _ := bits.Div64(r, lo, 1000)
	return amount{q, low}
}

// int is the amount as it is shown: of what is beyond, the most that can be.
func (a amount) int() int64 {
	if a.hi != 0 || a.lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(a.lo)
}

// dimension of resources that quotas are of. Ports are not sold.
type dimension uint8

const (
	dimCPU dimension = iota
	dimMem
	dimDisk
	dimDiskRate
	dimDevice
)

// item is an amount of one dimension, in one band or in none.
type item struct {
	band   borgpb.Band
	dim    dimension
	device string
	n      amount
}

func (i *item) compare(o *item) int {
	return cmp.Or(cmp.Compare(i.band, o.band), cmp.Compare(i.dim, o.dim), strings.Compare(i.device, o.device))
}

// charge is a vector of amounts: sorted, without zeros. It is never changed in place.
type charge []item

// chargeOf is so many times r in a band.
func chargeOf(band borgpb.Band, r *Resources, times uint64) charge {
	if times == 0 {
		return nil
	}
	out := make(charge, 0, 2+len(r.Devices))
	for _, q := range [...]struct {
		dim dimension
		n   int64
	}{{dimCPU, r.CPUMilli}, {dimMem, r.MemBytes}, {dimDisk, r.DiskBytes}, {dimDiskRate, r.DiskBytesPerS}} {
		if q.n > 0 {
			out = append(out, item{band: band, dim: q.dim, n: amountOf(q.n, times)})
		}
	}
	for _, d := range r.Devices {
		if d.Milli > 0 {
			out = append(out, item{band, dimDevice, d.Name, amountOf(d.Milli, times)})
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// merge joins two charges: both tells what becomes of an amount that is in a, in b, or
// in both, the absent one being zero.
func merge(a, b charge, both func(x, y amount) amount) charge {
	var out charge
	for len(a) > 0 || len(b) > 0 {
		var next item
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].compare(&b[0]) < 0:
			next, a = a[0], a[1:]
			next.n = both(next.n, amount{})
		case len(a) == 0 || a[0].compare(&b[0]) > 0:
			next, b = b[0], b[1:]
			next.n = both(amount{}, next.n)
		default:
			next = a[0]
			next.n = both(next.n, b[0].n)
			a, b = a[1:], b[1:]
		}
		if !next.n.isZero() {
			out = append(out, next)
		}
	}
	return out
}

func (c charge) plus(o charge) charge {
	if len(o) == 0 {
		return c
	}
	return merge(c, o, amount.plus)
}

// minus is what is left of c, nothing of what o has more of.
func (c charge) minus(o charge) charge {
	if len(o) == 0 {
		return c
	}
	return merge(c, o, amount.minus)
}

// most has the larger of each.
func (c charge) most(o charge) charge {
	return merge(c, o, func(x, y amount) amount {
		if x.compare(y) < 0 {
			return y
		}
		return x
	})
}

// of is the amount of what i is of.
func (c charge) of(i *item) amount {
	at, ok := slices.BinarySearchFunc(c, i, func(e item, i *item) int { return e.compare(i) })
	if !ok {
		return amount{}
	}
	return c[at].n
}

// in is what of it is in a band, as a vector; what is beyond all numbers is shown as
// the largest of them.
func (c charge) in(band borgpb.Band) (r Resources) {
	for i := range c {
		if c[i].band != band {
			continue
		}
		n := c[i].n.int()
		switch c[i].dim {
		case dimCPU:
			r.CPUMilli = n
		case dimMem:
			r.MemBytes = n
		case dimDisk:
			r.DiskBytes = n
		case dimDiskRate:
			r.DiskBytesPerS = n
		case dimDevice:
			r.Devices = append(r.Devices, Device{c[i].device, n})
		}
	}
	return r
}

// what names what an amount is of.
func (i *item) what() string {
	return [...]string{"cpu", "memory", "disk", "disk bytes/s", i.device}[i.dim]
}

// flag is how a grant of it is typed.
func (i *item) flag(n amount) string {
	switch i.dim {
	case dimCPU:
		return "--cpu " + DeviceText(n.int())
	case dimMem:
		return "--mem " + bytesText(n.int())
	case dimDisk:
		return "--disk " + bytesText(n.int())
	case dimDiskRate:
		return "--disk-rate " + bytesText(n.int())
	}
	whole := n.plus(amount{0, wholeDevice - 1}).int() / wholeDevice
	return fmt.Sprintf("--device %s=%d", i.device, whole)
}

// text says an amount of what i is of.
func (i *item) text(n amount) string {
	switch i.dim {
	case dimCPU, dimDevice:
		return DeviceText(n.int())
	}
	return bytesText(n.int())
}

// words is text for people: bytes are rounded down to hundredths of a unit.
func (i *item) words(n amount) string {
	if i.dim == dimCPU || i.dim == dimDevice {
		return i.text(n)
	}
	bytes := n.int()
	for at, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if size := int64(1) << (40 - 10*at); bytes >= size {
			text := fmt.Sprintf("%d.%02d", bytes/size, bytes%size*100/size)
			return strings.TrimRight(strings.TrimRight(text, "0"), ".") + unit
		}
	}
	return fmt.Sprint(bytes)
}

// bytesText says bytes exactly, in the largest unit that does: "6TiB", "1536MiB".
func bytesText(n int64) string {
	for at, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if size := int64(1) << (40 - 10*at); n >= size && n%size == 0 {
			return fmt.Sprint(n/size) + unit
		}
	}
	return fmt.Sprint(n)
}

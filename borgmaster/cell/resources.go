package cell

import (
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// Resources is a vector of amounts: borgpb.Resources in a form that can be
// added up and compared without a map.
type Resources struct {
	CPUMilli      int64
	MemBytes      int64
	DiskBytes     int64
	DiskBytesPerS int64
	Ports         int64
	// Sorted by name, no zero amounts. Shared: never changed in place.
	Devices []Device
}

// Device is an amount of a named device, in thousandths: a share of one device
// when it is below 1,000, otherwise that many whole ones. A sum may be anything.
type Device struct {
	Name  string
	Milli int64
}

// FromProto converts; a nil message is nothing.
func FromProto(p *borgpb.Resources) Resources {
	r := Resources{
		CPUMilli:      p.GetCpuMilli(),
		MemBytes:      p.GetMemBytes(),
		DiskBytes:     p.GetDiskBytes(),
		DiskBytesPerS: p.GetDiskBytesPerS(),
		Ports:         p.GetPorts(),
	}
	for name, n := range p.GetDevices() {
		if n != 0 {
			r.Devices = append(r.Devices, Device{name, n * wholeDevice})
		}
	}
	for name, n := range p.GetDeviceMilli() {
		r.Devices = append(r.Devices, Device{name, n})
	}
	slices.SortFunc(r.Devices, func(a, b Device) int { return strings.Compare(a.Name, b.Name) })
	return r
}

// Proto converts back.
func (r Resources) Proto() *borgpb.Resources {
	p := &borgpb.Resources{
		CpuMilli:      r.CPUMilli,
		MemBytes:      r.MemBytes,
		DiskBytes:     r.DiskBytes,
		DiskBytesPerS: r.DiskBytesPerS,
		Ports:         r.Ports,
	}
	for _, d := range r.Devices {
		to, n := &p.Devices, d.Milli/wholeDevice
		if d.Milli%wholeDevice != 0 {
			to, n = &p.DeviceMilli, d.Milli
		}
		if *to == nil {
			*to = make(map[string]int64, len(r.Devices))
		}
		(*to)[d.Name] = n
	}
	return p
}

// Add returns r + o.
func (r Resources) Add(o Resources) Resources {
	return Resources{
		CPUMilli:      r.CPUMilli + o.CPUMilli,
		MemBytes:      r.MemBytes + o.MemBytes,
		DiskBytes:     r.DiskBytes + o.DiskBytes,
		DiskBytesPerS: r.DiskBytesPerS + o.DiskBytesPerS,
		Ports:         r.Ports + o.Ports,
		Devices:       addDevices(r.Devices, o.Devices, 1),
	}
}

// Sub returns r - o; amounts may become negative.
func (r Resources) Sub(o Resources) Resources {
	return Resources{
		CPUMilli:      r.CPUMilli - o.CPUMilli,
		MemBytes:      r.MemBytes - o.MemBytes,
		DiskBytes:     r.DiskBytes - o.DiskBytes,
		DiskBytesPerS: r.DiskBytesPerS - o.DiskBytesPerS,
		Ports:         r.Ports - o.Ports,
		Devices:       addDevices(r.Devices, o.Devices, -1),
	}
}

// Min returns the smaller of each amount.
func (r Resources) Min(o Resources) Resources {
	m := Resources{
		CPUMilli:      min(r.CPUMilli, o.CPUMilli),
		MemBytes:      min(r.MemBytes, o.MemBytes),
		DiskBytes:     min(r.DiskBytes, o.DiskBytes),
		DiskBytesPerS: min(r.DiskBytesPerS, o.DiskBytesPerS),
		Ports:         min(r.Ports, o.Ports),
	}
	for _, d := range r.Devices {
		if n := min(d.Milli, o.Device(d.Name)); n != 0 {
			m.Devices = append(m.Devices, Device{d.Name, n})
		}
	}
	return m
}

// Fits tells whether r is at most free in every dimension. A dimension of
// which nothing is asked always fits, even where free is negative.
func (r Resources) Fits(free Resources) bool { return r.shortOf(&free) == FitOK }

// shortOf names the first dimension in which r is more than free.
func (r *Resources) shortOf(free *Resources) Fit {
	switch {
	case r.Ports > 0 && r.Ports > free.Ports:
		return FitPorts
	case r.CPUMilli > 0 && r.CPUMilli > free.CPUMilli:
		return FitCPU
	case r.MemBytes > 0 && r.MemBytes > free.MemBytes:
		return FitMemory
	case r.DiskBytes > 0 && r.DiskBytes > free.DiskBytes,
		r.DiskBytesPerS > 0 && r.DiskBytesPerS > free.DiskBytesPerS:
		return FitDisk
	}
	for _, d := range r.Devices {
		if d.Milli > free.Device(d.Name) {
			return FitDevices
		}
	}
	return FitOK
}

// Device returns the amount of a named device, in thousandths.
func (r Resources) Device(name string) int64 {
	for _, d := range r.Devices {
		if d.Name == name {
			return d.Milli
		}
	}
	return 0
}

// IsZero tells whether r is nothing in every dimension.
func (r Resources) IsZero() bool { return r.Equal(Resources{}) }

// Equal tells whether all amounts are the same.
func (r Resources) Equal(o Resources) bool {
	return r.CPUMilli == o.CPUMilli && r.MemBytes == o.MemBytes && r.DiskBytes == o.DiskBytes &&
		r.DiskBytesPerS == o.DiskBytesPerS && r.Ports == o.Ports && slices.Equal(r.Devices, o.Devices)
}

// addDevices merges two sorted lists; sign is 1 or -1 and applies to b.
func addDevices(a, b []Device, sign int64) []Device {
	if len(b) == 0 {
		return a
	}
	out := make([]Device, 0, len(a)+len(b))
	for len(a) > 0 || len(b) > 0 {
		var d Device
		switch {
		case len(b) == 0 || (len(a) > 0 && a[0].Name < b[0].Name):
			d, a = a[0], a[1:]
		case len(a) == 0 || b[0].Name < a[0].Name:
			d, b = Device{b[0].Name, sign * b[0].Milli}, b[1:]
		default:
			d, a, b = Device{a[0].Name, a[0].Milli + sign*b[0].Milli}, a[1:], b[1:]
		}
		if d.Milli != 0 {
			out = append(out, d)
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

package cell

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// FormatTaskDefaults is the format in which what a user's tasks ask for who say nothing
// began to be filled in.
const FormatTaskDefaults = 9

// Defaults are what a task or alloc that asks for r gets besides, of what its user's
// tasks ask for who say nothing: of each amount that it asks for none of.
func Defaults(r, otherwise *borgpb.Resources) *borgpb.Resources {
	pick := func(asked, n int64) int64 {
		if asked != 0 {
			return 0
		}
		return n
	}
	more := &borgpb.Resources{
		CpuMilli:      pick(r.GetCpuMilli(), otherwise.GetCpuMilli()),
		MemBytes:      pick(r.GetMemBytes(), otherwise.GetMemBytes()),
		DiskBytes:     pick(r.GetDiskBytes(), otherwise.GetDiskBytes()),
		DiskBytesPerS: pick(r.GetDiskBytesPerS(), otherwise.GetDiskBytesPerS()),
	}
	missing := func(all map[string]int64) map[string]int64 {
		of := maps.Clone(all)
		maps.DeleteFunc(of, func(name string, _ int64) bool {
			return r.GetDevices()[name] != 0 || r.GetDeviceMilli()[name] != 0
		})
		return of
	}
	more.Devices, more.DeviceMilli = missing(otherwise.GetDevices()), missing(otherwise.GetDeviceMilli())
	return more
}

// filled are the bytes of a spec with what its user's tasks ask for who say nothing. In
// the wire format a message that comes again adds to what was there, so that is written
// behind the spec as it was given: the same bytes in every build.
func (c *Cell) filled(user string, spec []byte, asks *borgpb.Resources, way ...protoreflect.FieldDescriptor) []byte {
	b := c.taskBounds.byUser[user]
	if b == nil || c.format < FormatTaskDefaults {
		return spec
	}
	more := appendResources(nil, Defaults(asks, b.otherwise.Proto()))
	if len(more) == 0 {
		return spec
	}
	for _, fd := range slices.Backward(way) {
		more = protowire.AppendBytes(protowire.AppendTag(nil, fd.Number(), protowire.BytesType), more)
	}
	return append(slices.Clip(spec), more...)
}

// Where in a spec it stands what a task or an alloc asks for.
var (
	taskAsks  = wayTo(new(borgpb.JobSpec).ProtoReflect().Descriptor(), "task", "resources")
	allocAsks = wayTo(new(borgpb.AllocSetSpec).ProtoReflect().Descriptor(), "resources")
)

func wayTo(md protoreflect.MessageDescriptor, names ...protoreflect.Name) (way []protoreflect.FieldDescriptor) {
	for _, name := range names {
		fd := md.Fields().ByName(name)
		way, md = append(way, fd), fd.Message()
	}
	return way
}

// appendResources writes what is not zero in the wire format, fields ascending.
func appendResources(b []byte, r *borgpb.Resources) []byte {
	fields := r.ProtoReflect().Descriptor().Fields()
	number := func(name protoreflect.Name) protowire.Number { return fields.ByName(name).Number() }
	for _, q := range []struct {
		name protoreflect.Name
		n    int64
	}{{"cpu_milli", r.CpuMilli}, {"mem_bytes", r.MemBytes}, {"disk_bytes", r.DiskBytes}, {"disk_bytes_per_s", r.DiskBytesPerS}} {
		if q.n != 0 {
			b = protowire.AppendVarint(protowire.AppendTag(b, number(q.name), protowire.VarintType), uint64(q.n))
		}
	}
	for _, q := range []struct {
		name protoreflect.Name
		of   map[string]int64
	}{{"devices", r.Devices}, {"device_milli", r.DeviceMilli}} {
		for _, name := range sortedKeys(q.of) {
			entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
			entry = protowire.AppendVarint(protowire.AppendTag(entry, 2, protowire.VarintType), uint64(q.of[name]))
			b = protowire.AppendBytes(protowire.AppendTag(b, number(q.name), protowire.BytesType), entry)
		}
	}
	return b
}

// readGivenSpec reads the spec of a job that is submitted or updated, and fills it in.
func (c *Cell) readGivenSpec(key JobKey, data []byte) (*Spec, *borgpb.Refusal) {
	spec, r := c.readSpec(key, data)
	if r != nil {
		return nil, r
	}
	if more := c.filled(key.User, data, spec.Proto.Task.GetResources(), taskAsks...); len(more) != len(data) {
		if spec, r = c.readSpec(key, more); r != nil {
			return nil, r
		}
	}
	return spec, c.checkWants(spec)
}

// readGivenAllocSet does so for the spec of an alloc set.
func (c *Cell) readGivenAllocSet(key JobKey, data []byte) (*borgpb.AllocSetSpec, []byte, *borgpb.Refusal) {
	spec, r := readAllocSetSpec(data, c.format)
	if r != nil {
		return nil, nil, r
	}
	if more := c.filled(key.User, data, spec.Resources, allocAsks...); len(more) != len(data) {
		data = more
		if spec, r = readAllocSetSpec(data, c.format); r != nil {
			return nil, nil, r
		}
	}
	return spec, data, c.checkSetWants(spec)
}

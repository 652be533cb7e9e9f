package cfg

import (
	"sort"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// constructor is a function of job files that makes one kind of message.
type constructor struct {
	name    string
	message protoreflect.MessageDescriptor
	// Declares an object of the file: it has a name, an owner, labels and
	// annotations as well.
	object bool
}

func describe(m interface {
	ProtoReflect() protoreflect.Message
}) protoreflect.MessageDescriptor {
	return m.ProtoReflect().Descriptor()
}

// constructors are all there are, in the order of the manual.
func constructors() []*constructor {
	return []*constructor{
		{"job", describe(&borgpb.JobSpec{}), true},
		{"alloc_set", describe(&borgpb.AllocSetSpec{}), true},
		{"task", describe(&borgpb.TaskSpec{}), false},
		{"resources", describe(&borgpb.Resources{}), false},
		{"constraint", describe(&borgpb.Constraint{}), false},
		{"health", describe(&borgpb.HealthCheck{}), false},
		{"update", describe(&borgpb.UpdatePolicy{}), false},
		{"gate", describe(&borgpb.MetricGate{}), false},
		{"disruption_budget", describe(&borgpb.DisruptionBudget{}), false},
		{"package", describe(&borgpb.Package{}), false},
		{"mount", describe(&borgpb.Mount{}), false},
		{"relax", describe(&borgpb.Relax{}), false},
		{"toleration", describe(&borgpb.Toleration{}), false},
		{"override", describe(&borgpb.TaskOverride{}), false},
		{"cron", describe(&borgpb.CronSpec{}), false},
		{"file", describe(&borgpb.PushedFile{}), false},
		{"saver", describe(&borgpb.Saver{}), false},
		{"volume", describe(&borgpb.Volume{}), false},
	}
}

// constructorOf returns the one for a message, or nil.
func constructorOf(md protoreflect.MessageDescriptor) *constructor {
	for _, c := range constructors() {
		if c.message.FullName() == md.FullName() {
			return c
		}
	}
	return nil
}

// unit is how the number of a field may be written.
type unit uint8

const (
	unitNone unit = iota
	unitCPU
	unitBytes
	unitTime
	// A number, kept in millionths.
	unitMicro
)

// column is one way to write a field of a message.
type column struct {
	// As written in job files.
	name string
	fd   protoreflect.FieldDescriptor
	unit unit
	// Written by its bare proto name, which says the unit: a number without a
	// unit is in that unit.
	bare bool
}

// aliases are further names of fields, by message; what is not an alias follows
// from the proto name.
var aliases = map[protoreflect.FullName]map[string]string{
	"borg.Constraint":   {"op": "relation"},
	"borg.TaskOverride": {"task": "spec"},
	"borg.HealthCheck":  {"http": "http_path"},
	"borg.UpdatePolicy": {"batch": "batch_size"},
}

// meant are names from elsewhere, for "did you mean".
var meant = map[string]string{
	"memory": "mem", "ram": "mem", "cpus": "cpu", "cores": "cpu",
	"count": "tasks", "replicas": "tasks", "instances": "tasks", "size": "tasks",
	"command": "args", "cmd": "args", "argv": "args", "entrypoint": "args",
	"environment": "env", "image": "rootfs", "type": "kind",
	"prio": "priority", "healthcheck": "health", "health_check": "health",
	"owner": "user", "port": "ports", "retries": "max_failures", "requires": "constraints",
	"pdb": "disruption_budget", "budget": "disruption_budget", "max_unavailable": "max_down",
	"operator": "op", "grace_period": "grace", "working_dir": "cwd", "workdir": "cwd",
}

// columns are all ways to write the fields of a message, friendly ones first.
func columns(md protoreflect.MessageDescriptor) []column {
	var friendly, bare []column
	fields := md.Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		name, u := friendlyName(fd)
		friendly = append(friendly, column{name: name, fd: fd, unit: u})
		if proto := string(fd.Name()); proto != name {
			bare = append(bare, column{name: proto, fd: fd, unit: u, bare: true})
		}
		if fd.JSONName() != string(fd.Name()) && fd.JSONName() != name {
			bare = append(bare, column{name: fd.JSONName(), fd: fd, unit: u, bare: u != unitNone})
		}
	}
	for alias, proto := range aliases[md.FullName()] {
		friendly = append(friendly, column{name: alias, fd: fields.ByName(protoreflect.Name(proto))})
	}
	sort.SliceStable(friendly, func(i, j int) bool { return friendly[i].fd.Number() < friendly[j].fd.Number() })
	return append(friendly, bare...)
}

// friendlyName is the field's name without its unit, and the unit.
func friendlyName(fd protoreflect.FieldDescriptor) (string, unit) {
	name := string(fd.Name())
	if fd.Kind() != protoreflect.Int64Kind || fd.IsList() || fd.IsMap() {
		return name, unitNone
	}
	switch {
	case strings.HasSuffix(name, "_bytes_per_s"):
		return strings.TrimSuffix(name, "_bytes_per_s") + "_per_s", unitBytes
	case strings.HasSuffix(name, "_bytes"):
		return strings.TrimSuffix(name, "_bytes"), unitBytes
	case strings.HasSuffix(name, "_milli"):
		return strings.TrimSuffix(name, "_milli"), unitCPU
	case strings.HasSuffix(name, "_micro"):
		return strings.TrimSuffix(name, "_micro"), unitMicro
	case strings.HasSuffix(name, "_ns"):
		return strings.TrimSuffix(name, "_ns"), unitTime
	}
	return name, unitNone
}

// lookup finds the field that name stands for.
func lookup(md protoreflect.MessageDescriptor, name string) (column, bool) {
	for _, c := range columns(md) {
		if c.name == name {
			return c, true
		}
	}
	return column{}, false
}

// known are the names to offer for a message, friendly ones only.
func known(md protoreflect.MessageDescriptor, extra ...string) []string {
	out := append([]string(nil), extra...)
	for _, c := range columns(md) {
		if !c.bare && c.name == strings.ToLower(c.name) {
			out = append(out, c.name)
		}
	}
	return out
}

// enumWord is the word for an enum value in job files: "service" for
// JOB_KIND_SERVICE.
func enumWord(ed protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	v := ed.Values().ByNumber(n)
	if v == nil {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), enumPrefix(ed)))
}

// enumPrefix is what all values of an enum begin with: "JOB_KIND_".
func enumPrefix(ed protoreflect.EnumDescriptor) string {
	return strings.TrimSuffix(string(ed.Values().ByNumber(0).Name()), "UNSPECIFIED")
}

// relations are the signs of constraint relations.
var relations = map[string]borgpb.Relation{
	"=": borgpb.Relation_RELATION_EQUAL, "==": borgpb.Relation_RELATION_EQUAL,
	"!=": borgpb.Relation_RELATION_NOT_EQUAL,
	"<":  borgpb.Relation_RELATION_LESS_THAN, "<=": borgpb.Relation_RELATION_LESS_THAN_EQUAL,
	">": borgpb.Relation_RELATION_GREATER_THAN, ">=": borgpb.Relation_RELATION_GREATER_THAN_EQUAL,
}

// bands are the priorities that a band's name stands for when the file gives
// no number (paper §2.5), and where each band begins and ends.
var bands = []struct {
	name               string
	usual, first, last int32
}{
	{"free", 50, 0, 99},
	{"batch", 110, 100, 115},
	{"mid", 117, 116, 119},
	{"production", 200, 120, 359},
	{"monitoring", 360, 360, maxPriority},
}

// BandOf is the name of the band that a priority lies in.
func BandOf(priority int32) string {
	for _, b := range bands {
		if priority >= b.first && priority <= b.last {
			return b.name
		}
	}
	return "unknown"
}

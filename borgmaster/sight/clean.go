package sight

import (
	"errors"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// ErrWithheld is returned for an answer with an object that its reader may not see: it was
// shown before, or nobody has left it out.
var ErrWithheld = errors.New("what you may read has changed meanwhile; ask again")

// Clean returns the message as the reader may be shown it. It changes a copy.
func (l *Lens) Clean(m proto.Message) (proto.Message, error) {
	if l == nil {
		return m, nil
	}
	p := planOf(m.ProtoReflect().Descriptor())
	if !p.looks {
		return m, nil
	}
	m = proto.Clone(m)
	return m, l.clean(m.ProtoReflect(), p)
}

// notLooked are messages that are nobody's but their owner's words: who sees the object
// that they are of sees them as they are.
var notLooked = map[protoreflect.FullName]bool{
	"borg.JobSpec": true, "borg.AllocSetSpec": true, "borg.TaskSpec": true, "borg.Resources": true, "borg.Op": true,
}

// plan is what of a type of message is looked at.
type plan struct {
	fields []fieldPlan
	// There is something to look at in it, at any depth.
	looks bool
}

type fieldPlan struct {
	fd protoreflect.FieldDescriptor
	// Of a message in the field; nil: it is a string.
	in *plan
}

var (
	plansMu sync.Mutex
	// Guarded by plansMu.
	plans = map[protoreflect.FullName]*plan{}
)

func planOf(d protoreflect.MessageDescriptor) *plan {
	plansMu.Lock()
	defer plansMu.Unlock()
	return planLocked(d)
}

func planLocked(d protoreflect.MessageDescriptor) *plan {
	if p := plans[d.FullName()]; p != nil {
		return p
	}
	// A type that holds itself is looked at.
	p := &plan{looks: true}
	plans[d.FullName()] = p
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		switch {
		case fd.IsMap():
		case fd.Kind() == protoreflect.StringKind:
			p.fields = append(p.fields, fieldPlan{fd: fd})
		case fd.Message() != nil && !notLooked[fd.Message().FullName()]:
			if in := planLocked(fd.Message()); in.looks {
				p.fields = append(p.fields, fieldPlan{fd, in})
			}
		}
	}
	p.looks = len(p.fields) > 0
	return p
}

func (l *Lens) clean(m protoreflect.Message, p *plan) error {
	if err := l.object(m.Interface()); err != nil {
		return err
	}
	for _, f := range p.fields {
		if !m.Has(f.fd) {
			continue
		}
		if err := l.field(m, f); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lens) field(m protoreflect.Message, f fieldPlan) error {
	value := m.Get(f.fd)
	switch {
	case f.fd.IsList():
		for i, list := 0, value.List(); i < list.Len(); i++ {
			if f.in == nil {
				if was := list.Get(i).String(); namesTaker(was) {
					list.Set(i, protoreflect.ValueOfString(l.Text(was)))
				}
			} else if err := l.clean(list.Get(i).Message(), f.in); err != nil {
				return err
			}
		}
	case f.in != nil:
		return l.clean(value.Message(), f.in)
	default:
		if was := value.String(); namesTaker(was) {
			m.Set(f.fd, protoreflect.ValueOfString(l.Text(was)))
		}
	}
	return nil
}

// object withholds what the reader may not see, and takes foreign names out of what he may.
func (l *Lens) object(m proto.Message) error {
	seen := true
	switch o := m.(type) {
	case *borgpb.Meta:
		seen = o.User == "" || l.Labelled(o.User, o.Labels) || l.Key(cell.JobKey{User: o.User, Name: o.Name})
	case *borgpb.Event:
		if seen = l.Event(o); o.Kind == borgpb.EventKind_EVENT_KIND_MACHINE_PORTS {
			// It may name somebody's program.
			o.Reason = ""
		}
	case *borgpb.UsageRow:
		seen = l.Usage(o)
	case *borgpb.ObjectFacts:
		seen = l.Facts(o)
	case *borgpb.VolumeStatus:
		seen = l.Key(cell.JobKey{User: o.User, Name: o.Job})
	case *borgpb.Attempt:
		seen = l.Key(cell.JobKey{User: o.User, Name: o.Job})
	case *borgrpc.Desired:
		seen = l.Key(cell.JobKey{User: o.User, Name: o.Job})
	case *borgrpc.QuotaUse:
		seen = l.User(o.User)
	case *borgrpc.TaskBounds:
		seen = l.User(o.User)
	case *borgrpc.StateShare:
		seen = o.User == "" || l.User(o.User)
	case *borgrpc.LabelBreach:
		seen = o.Kind == borgpb.Labelled_LABELLED_MACHINE || l.Name(o.Object)
	default:
		l.names(m)
	}
	if !seen {
		return ErrWithheld
	}
	return nil
}

// names puts other words where a message of what is seen names foreign work.
func (l *Lens) names(m proto.Message) {
	hide := func(name *string) bool {
		if *name == "" || l.Name(*name) {
			return false
		}
		*name = Another
		return true
	}
	all := func(names []string) {
		for i := range names {
			hide(&names[i])
		}
	}
	switch o := m.(type) {
	case *borgpb.MachineSpec:
		// Which packages it has says what runs there.
		o.Packages = nil
	case *borgpb.MachineStatus:
		o.UnknownTasks = nil
	case *borgpb.HeldPort:
		o.By = ""
	case *borgpb.DrainBlocker:
		task, job, volume := hide(&o.Task), hide(&o.Job), hide(&o.Volume)
		if task || job || volume {
			// It may name the same.
			o.Reason = "it may not be disturbed yet"
		}
	case *borgpb.AllocStatus:
		all(o.Tasks)
	case *borgrpc.DrainVerdict:
		all(o.Homeless)
	case *borgrpc.WhyFight:
		hide(&o.By)
	case *borgrpc.WhyHolder:
		hide(&o.Name)
	}
}

package borgmaster

import (
	"slices"
	"strings"
	"sync"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// What a text of an op may hold.
type textRule uint8

const (
	// Signs that people can see. Keys may hold no other, whatever their field is.
	visibleText textRule = iota
	// Lines and tabs too: the words of people.
	linesOfText
	// A path, which must not lead up.
	pathText
	// Anything: what a process is given. The cell refuses zero bytes in it.
	anyText
)

// textRules are those of fields by their full names; of what is not named here every
// sign must be visible.
var textRules = map[protoreflect.FullName]textRule{
	"borg.TaskSpec.args": anyText, "borg.TaskSpec.env": anyText, "borg.HealthCheck.command": anyText,
	"borg.Op.reason": linesOfText, "borg.Op.command": linesOfText,
	"borg.SubmitJob.annotations": linesOfText, "borg.UpdateJob.annotations": linesOfText,
	"borg.SubmitAllocSet.annotations": linesOfText, "borg.UpdateAllocSet.annotations": linesOfText,
	"borg.AddMachine.annotations": linesOfText, "borg.SetLabels.set_annotations": linesOfText,
	"borg.TaskSpec.cwd": pathText, "borg.TaskSpec.rootfs": pathText, "borg.Mount.source": pathText, "borg.Mount.path": pathText, "borg.Package.path": pathText,
}

// specIn is the spec that an op holds as bytes; nil: it holds none, or one that cannot
// be read, which the cell refuses.
func specIn(op *borgpb.Op) (spec proto.Message) {
	var data []byte
	switch o := op.GetOp().(type) {
	case *borgpb.Op_SubmitJob:
		data, spec = o.SubmitJob.GetSpec(), new(borgpb.JobSpec)
	case *borgpb.Op_UpdateJob:
		data, spec = o.UpdateJob.GetSpec(), new(borgpb.JobSpec)
	case *borgpb.Op_SubmitAllocSet:
		data, spec = o.SubmitAllocSet.GetSpec(), new(borgpb.AllocSetSpec)
	case *borgpb.Op_UpdateAllocSet:
		data, spec = o.UpdateAllocSet.GetSpec(), new(borgpb.AllocSetSpec)
	default:
		return nil
	}
	if proto.Unmarshal(data, spec) != nil {
		return nil
	}
	return spec
}

// checkTexts refuses an op, whose spec is specIn of it, with texts that would show on a
// terminal as something else than they are, tear a line of a log, or name a place that
// is not the one that they seem to name. Names are the cell's to check. It is done
// before the log, where a later build may be stricter without another format.
func checkTexts(op *borgpb.Op, spec proto.Message) *borgpb.Refusal {
	if r := textsOf(op.ProtoReflect()); r != nil || spec == nil {
		return r
	}
	return textsOf(spec.ProtoReflect())
}

// textFields are the fields of a message that hold texts, or messages that may: each
// by itself, and of those of which one at most is set which one to ask for.
type textFields struct {
	fields []textField
	oneofs []protoreflect.OneofDescriptor
}

type textField struct {
	fd   protoreflect.FieldDescriptor
	rule textRule
}

// textFieldsOf has a *textFields for each kind of message that was looked at.
var textFieldsOf sync.Map

func lookUpTextFields(m protoreflect.MessageDescriptor) *textFields {
	if known, ok := textFieldsOf.Load(m); ok {
		return known.(*textFields)
	}
	found := new(textFields)
	for i := range m.Fields().Len() {
		fd := m.Fields().Get(i)
		if of := fd.ContainingOneof(); of != nil && !of.IsSynthetic() {
			if !slices.Contains(found.oneofs, of) {
				found.oneofs = append(found.oneofs, of)
			}
		} else if holdsText(fd) {
			found.fields = append(found.fields, textField{fd, textRules[fd.FullName()]})
		}
	}
	textFieldsOf.Store(m, found)
	return found
}

func holdsText(fd protoreflect.FieldDescriptor) bool {
	return fd.IsMap() || fd.Kind() == protoreflect.MessageKind || fd.Kind() == protoreflect.StringKind
}

func textsOf(m protoreflect.Message) *borgpb.Refusal {
	found := lookUpTextFields(m.Descriptor())
	for _, f := range found.fields {
		if !m.Has(f.fd) {
			continue
		}
		if r := f.check(m.Get(f.fd)); r != nil {
			return r
		}
	}
	for _, of := range found.oneofs {
		fd := m.WhichOneof(of)
		if fd == nil || !holdsText(fd) {
			continue
		}
		if r := (textField{fd, textRules[fd.FullName()]}).check(m.Get(fd)); r != nil {
			return r
		}
	}
	return nil
}

// check looks at what is in the field.
func (f textField) check(v protoreflect.Value) (bad *borgpb.Refusal) {
	switch {
	case f.fd.IsMap():
		v.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
			if bad = checkVisible(f.fd, key.String(), visibleText); bad == nil {
				bad = f.checkOne(f.fd.MapValue(), value)
			}
			return bad == nil
		})
	case f.fd.IsList():
		for i, list := 0, v.List(); i < list.Len() && bad == nil; i++ {
			bad = f.checkOne(f.fd, list.Get(i))
		}
	default:
		bad = f.checkOne(f.fd, v)
	}
	return bad
}

// checkOne looks at one of the values in the field, which are of a kind.
func (f textField) checkOne(of protoreflect.FieldDescriptor, v protoreflect.Value) *borgpb.Refusal {
	switch of.Kind() {
	case protoreflect.MessageKind:
		return textsOf(v.Message())
	case protoreflect.StringKind:
		return f.checkText(v.String())
	}
	return nil
}

func (f textField) checkText(text string) *borgpb.Refusal {
	if f.rule == anyText {
		return nil
	}
	if f.rule == pathText && strings.Contains(text, "..") && slices.Contains(strings.Split(text, "/"), "..") {
		return badText(f.fd, "%q leads up by ..; write where it leads", text)
	}
	return checkVisible(f.fd, text, f.rule)
}

func checkVisible(field protoreflect.FieldDescriptor, text string, rule textRule) *borgpb.Refusal {
	for _, r := range text {
		if rule == linesOfText && (r == '\n' || r == '\t') || unicode.IsPrint(r) {
			continue
		}
		if rule == linesOfText {
			text = strings.NewReplacer("\n", "", "\t", "").Replace(text)
		}
		return badText(field, "%q holds %U, which cannot be seen", text, r)
	}
	return nil
}

func badText(field protoreflect.FieldDescriptor, format string, text string, args ...any) *borgpb.Refusal {
	const most = 64
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	r := refusal(borgpb.RefusalKind_REFUSAL_KIND_INVALID, "", format, append([]any{text}, args...)...)
	r.Field = strings.TrimPrefix(string(field.FullName()), "borg.")
	return r
}

package borgmaster

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"unicode"

	"google.golang.org/protobuf/encoding/protowire"
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

// specBytes is the spec that an op holds, as it was encoded, and an empty one to decode
// it into; nil: it holds none.
func specBytes(op *borgpb.Op) (data []byte, empty proto.Message) {
	switch o := op.GetOp().(type) {
	case *borgpb.Op_SubmitJob:
		return o.SubmitJob.GetSpec(), new(borgpb.JobSpec)
	case *borgpb.Op_UpdateJob:
		return o.UpdateJob.GetSpec(), new(borgpb.JobSpec)
	case *borgpb.Op_SubmitAllocSet:
		return o.SubmitAllocSet.GetSpec(), new(borgpb.AllocSetSpec)
	case *borgpb.Op_UpdateAllocSet:
		return o.UpdateAllocSet.GetSpec(), new(borgpb.AllocSetSpec)
	}
	return nil, nil
}

// specIn is the spec that an op holds; nil: it holds none, or one that cannot be read,
// which the cell refuses.
func specIn(op *borgpb.Op) proto.Message {
	data, spec := specBytes(op)
	if spec == nil || proto.Unmarshal(data, spec) != nil {
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
	m := spec.ProtoReflect()
	if data, _ := specBytes(op); lookUpTextFields(m.Descriptor()).plain(data) {
		return nil
	}
	return textsOf(m)
}

// textFields are the fields of a message that hold texts, or messages that may.
type textFields struct {
	// Each that may be set by itself, and of those of which one at most is set which one
	// to ask for.
	fields []textField
	oneofs []protoreflect.OneofDescriptor
	// All of them.
	byNumber map[protowire.Number]textField
}

type textField struct {
	fd   protoreflect.FieldDescriptor
	rule textRule
	// Of a map, its keys and values.
	entry *textFields
}

// textFieldsOf has a *textFields for each kind of message that was looked at.
var textFieldsOf sync.Map

func lookUpTextFields(m protoreflect.MessageDescriptor) *textFields {
	if known, ok := textFieldsOf.Load(m); ok {
		return known.(*textFields)
	}
	found := &textFields{byNumber: make(map[protowire.Number]textField)}
	for i := range m.Fields().Len() {
		fd := m.Fields().Get(i)
		if !holdsText(fd) {
			continue
		}
		f := textField{fd: fd, rule: textRules[fd.FullName()]}
		if fd.IsMap() {
			key, value := fd.MapKey(), fd.MapValue()
			f.entry = &textFields{byNumber: map[protowire.Number]textField{key.Number(): {fd: key}, value.Number(): {fd: value, rule: f.rule}}}
		}
		found.byNumber[fd.Number()] = f
		if of := fd.ContainingOneof(); of == nil || of.IsSynthetic() {
			found.fields = append(found.fields, f)
		} else if !slices.Contains(found.oneofs, of) {
			found.oneofs = append(found.oneofs, of)
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
		if r := found.byNumber[fd.Number()].check(m.Get(fd)); r != nil {
			return r
		}
	}
	return nil
}

// plain says that nothing is wrong with the texts of an encoded message, without a look
// at more than its bytes: as nearly always, they are of signs between space and ~. False
// means that it has to be looked at.
func (t *textFields) plain(data []byte) bool {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return false
		}
		data = data[n:]
		var value []byte
		if kind == protowire.BytesType {
			value, n = protowire.ConsumeBytes(data)
		} else {
			n = protowire.ConsumeFieldValue(number, kind, data)
		}
		if n < 0 {
			return false
		}
		data = data[n:]
		if f, ok := t.byNumber[number]; ok && kind == protowire.BytesType && !f.plain(value) {
			return false
		}
	}
	return true
}

func (f textField) plain(value []byte) bool {
	switch {
	case f.entry != nil:
		return f.entry.plain(value)
	case f.fd.Kind() == protoreflect.MessageKind:
		return lookUpTextFields(f.fd.Message()).plain(value)
	case f.fd.Kind() != protoreflect.StringKind || f.rule == anyText:
		return true
	case f.rule == pathText && bytes.Contains(value, []byte("..")):
		return false
	}
	for _, b := range value {
		if b < ' ' || b > '~' {
			return false
		}
	}
	return true
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

package borgmaster

import (
	"slices"
	"strings"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// What texts of an op may hold, by the full name of the field; of what is not
// named here, and of keys, every sign must be one that people can see.
var (
	// Anything: what a process is given. The cell refuses zero bytes in it.
	anyText = []protoreflect.FullName{"borg.TaskSpec.args", "borg.TaskSpec.env", "borg.HealthCheck.command"}
	// Lines and tabs too: the words of people.
	linesOfText = []protoreflect.FullName{"borg.Op.reason", "borg.Op.command",
		"borg.SubmitJob.annotations", "borg.UpdateJob.annotations", "borg.SubmitAllocSet.annotations", "borg.UpdateAllocSet.annotations", "borg.AddMachine.annotations", "borg.SetLabels.set_annotations"}
	// Paths, which must not lead up.
	paths = []protoreflect.FullName{"borg.TaskSpec.cwd", "borg.TaskSpec.rootfs", "borg.Mount.source", "borg.Mount.path", "borg.Package.path"}
)

// checkTexts refuses an op with texts that would show on a terminal as something
// else than they are, tear a line of a log, or name a place that is not the one
// that they seem to name. Names are the cell's to check. It is done before the log,
// where a later build may be stricter without another format.
func checkTexts(op *borgpb.Op) *borgpb.Refusal {
	if r := textsOf(op.ProtoReflect()); r != nil {
		return r
	}
	// Specs are bytes; what cannot be read as one the cell refuses.
	spec, m := []byte(nil), proto.Message(new(borgpb.JobSpec))
	switch o := op.GetOp().(type) {
	case *borgpb.Op_SubmitJob:
		spec = o.SubmitJob.GetSpec()
	case *borgpb.Op_UpdateJob:
		spec = o.UpdateJob.GetSpec()
	case *borgpb.Op_SubmitAllocSet:
		spec, m = o.SubmitAllocSet.GetSpec(), new(borgpb.AllocSetSpec)
	case *borgpb.Op_UpdateAllocSet:
		spec, m = o.UpdateAllocSet.GetSpec(), new(borgpb.AllocSetSpec)
	}
	if proto.Unmarshal(spec, m) != nil {
		return nil
	}
	return textsOf(m.ProtoReflect())
}

func textsOf(m protoreflect.Message) (bad *borgpb.Refusal) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		one := func(fd, of protoreflect.FieldDescriptor, v protoreflect.Value) {
			switch {
			case bad != nil:
			case of.Kind() == protoreflect.MessageKind:
				bad = textsOf(v.Message())
			case of.Kind() == protoreflect.StringKind:
				bad = checkText(fd.FullName(), v.String())
			}
		}
		switch {
		case fd.IsMap():
			v.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
				if bad = checkVisible(fd.FullName(), key.String()); bad == nil {
					one(fd, fd.MapValue(), value)
				}
				return bad == nil
			})
		case fd.IsList():
			for i := range v.List().Len() {
				one(fd, fd, v.List().Get(i))
			}
		default:
			one(fd, fd, v)
		}
		return bad == nil
	})
	return bad
}

func checkText(field protoreflect.FullName, text string) *borgpb.Refusal {
	switch {
	case slices.Contains(anyText, field):
		return nil
	case slices.Contains(linesOfText, field):
		return checkVisible(field, strings.NewReplacer("\n", "", "\t", "").Replace(text))
	case slices.Contains(paths, field) && slices.Contains(strings.Split(text, "/"), ".."):
		return badText(field, "%q leads up by ..; write where it leads", text)
	}
	return checkVisible(field, text)
}

func checkVisible(field protoreflect.FullName, text string) *borgpb.Refusal {
	for _, r := range text {
		if !unicode.IsPrint(r) {
			return badText(field, "%q holds %U, which cannot be seen", text, r)
		}
	}
	return nil
}

func badText(field protoreflect.FullName, format string, text string, args ...any) *borgpb.Refusal {
	const most = 64
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	r := refusal(borgpb.RefusalKind_REFUSAL_KIND_INVALID, "", format, append([]any{text}, args...)...)
	r.Field = strings.TrimPrefix(string(field), "borg.")
	return r
}

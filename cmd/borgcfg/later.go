package main

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/cli"
)

// checkKnown refuses to compare a spec in which somebody with a later build has written
// what this one does not know: it would be shown as nothing, and lost in an update.
func (st *step) checkKnown(spec proto.Message) error {
	if knows(spec) {
		return nil
	}
	return cli.Errorf(cli.Refused, "%s %s says something that this borgcfg does not know: it was submitted by a later build", st.Kind, st.Key()).
		Hint("nothing was done; use the borgcfg of that build, or a later one")
}

// knows tells that a message has no field and no value that this build has not heard of.
func knows(m proto.Message) bool {
	known := true
	// The walk ends with the first that is not known.
	_ = protorange.Range(m.ProtoReflect(), func(p protopath.Values) error {
		last := p.Index(-1)
		if last.Step.Kind() == protopath.UnknownAccessStep {
			known = false
		}
		if v, ok := last.Value.Interface().(protoreflect.EnumNumber); ok {
			step := last.Step
			if step.Kind() != protopath.FieldAccessStep {
				// Of a list.
				step = p.Index(-2).Step
			}
			known = step.FieldDescriptor().Enum().Values().ByNumber(v) != nil
		}
		if !known {
			return protorange.Terminate
		}
		return nil
	})
	return known
}

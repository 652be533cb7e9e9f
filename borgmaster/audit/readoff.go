package audit

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// Every replica makes the record of each op, beside the cell, which decodes it. What a
// record says stands in a few fields, so that the rest, which is mostly a spec, need not
// be decoded a second time.

// kindOfOp is how a record tells ops of a kind.
type kindOfOp struct {
	verb string
	// Fields of the message with whose it is and what it is called; 0: there is none.
	user, name protowire.Number
	// Field with the content of a small file; 0: none.
	content protowire.Number
}

var kindsOfOps = kindsOf((&borgpb.Op{}).ProtoReflect().Descriptor())

// kindsOf reads the kinds of ops off the message, so that a new one needs nothing here.
func kindsOf(op protoreflect.MessageDescriptor) map[protowire.Number]kindOfOp {
	kinds := map[protowire.Number]kindOfOp{}
	fields := op.Oneofs().ByName("op").Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		k := kindOfOp{verb: verbOf(f.Name())}
		text := func(name protoreflect.Name) protowire.Number {
			if f := f.Message().Fields().ByName(name); f != nil && f.Kind() == protoreflect.StringKind && !f.IsList() {
				return f.Number()
			}
			return 0
		}
		k.user, k.name = text("user"), text("name")
		if f.Message().FullName() == (&borgpb.WriteFile{}).ProtoReflect().Descriptor().FullName() {
			k.content = f.Message().Fields().ByName("content").Number()
		}
		kinds[f.Number()] = k
	}
	return kinds
}

// Verbs are those of all ops, sorted.
func Verbs() (verbs []string) {
	for _, k := range kindsOfOps {
		verbs = append(verbs, k.verb)
	}
	slices.Sort(verbs)
	return verbs
}

func verbOf(field protoreflect.Name) string { return strings.ReplaceAll(string(field), "_", "-") }

func objectOf[T ~string | ~[]byte](user, name T) string {
	if len(user) == 0 || len(name) == 0 {
		return string(user) + string(name)
	}
	return string(user) + "/" + string(name)
}

// readOff is Asked of an op that the cell could read, and how much content of a small
// file is in it. As in any message, what comes later holds.
func readOff(op []byte) (r *borgpb.AuditRecord, contentBytes int) {
	r = new(borgpb.AuditRecord)
	var task, who, user, name []byte
	var of protowire.Number
	fields(op, func(field protowire.Number, value []byte) {
		switch field {
		case opRequestIDField:
			r.RequestId = string(value)
		case opCommandField:
			r.Command = string(value)
		case opConfigHashField:
			r.ConfigHash = string(value)
		case opReasonField:
			r.Reason = string(value)
		case opPrincipalField:
			fields(value, func(field protowire.Number, value []byte) {
				switch field {
				case principalUserField:
					who = value
				case principalTaskField:
					task = value
				}
			})
			if role, ok := varint(value, principalRoleField); ok {
				r.Role = borgpb.Role(role)
			}
		}
		k, ok := kindsOfOps[field]
		if !ok {
			return
		}
		if field != of {
			of, user, name, contentBytes = field, nil, nil, 0
		}
		r.Verb = k.verb
		fields(value, func(field protowire.Number, value []byte) {
			switch field {
			case k.user:
				user = value
			case k.name:
				name = value
			case k.content:
				contentBytes = len(value)
			}
		})
	})
	if len(task) > 0 {
		who = task
	}
	r.Who, r.Object = string(who), objectOf(user, name)
	return r, contentBytes
}

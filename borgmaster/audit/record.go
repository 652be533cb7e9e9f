package audit

import (
	"cmp"
	"crypto/sha256"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// maxOpBytes is the largest op that is kept with its record. Of larger ones,
// which are specs, the hash is kept: a journal is bounded, and nobody shall push
// out what others did with a few large jobs.
const maxOpBytes = 32 << 10

// maxContentBytes is the largest content of a small file that is kept: tasks may
// write files all day.
const maxContentBytes = 1 << 10

// Records are the records of one entry: of the ops that somebody asked for.
// A retry that was answered from memory did nothing.
func Records(index uint64, entry []byte, results []*borgpb.Result) []*borgpb.AuditRecord {
	var records []*borgpb.AuditRecord
	n := -1
	fields(entry, func(field protowire.Number, op []byte) {
		if field != entryOpsField {
			return
		}
		n++
		if n >= len(results) || results[n].GetRepeated() || !wasAsked(op) {
			return
		}
		if r := RecordOf(op, results[n]); r != nil {
			r.Index, r.N = index, uint32(n)
			records = append(records, r)
		}
	})
	if len(records) > 0 {
		wallNs := wallTimeNs(entry)
		for _, r := range records {
			r.WallNs = wallNs
		}
	}
	return records
}

// wallTimeNs is that of an entry, whose ops are not decoded for it.
func wallTimeNs(entry []byte) int64 {
	ns, _ := varint(entry, entryWallTimeField)
	return int64(ns)
}

// varint is the value of a field that is a number; the last one, if there are several.
func varint(message []byte, of protowire.Number) (value uint64, ok bool) {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return value, ok
		}
		message = message[n:]
		if field == of && kind == protowire.VarintType {
			value, n = protowire.ConsumeVarint(message)
			ok = n > 0
		}
		if n = protowire.ConsumeFieldValue(field, kind, message); n < 0 {
			return value, ok
		}
		message = message[n:]
	}
	return value, ok
}

const (
	entryWallTimeField protowire.Number = 2
	entryOpsField      protowire.Number = 3
	opRequestIDField   protowire.Number = 1
	opPrincipalField   protowire.Number = 3
	opCommandField     protowire.Number = 4
	opConfigHashField  protowire.Number = 5
	opReasonField      protowire.Number = 6
	principalUserField protowire.Number = 1
	principalRoleField protowire.Number = 2
	principalTaskField protowire.Number = 30
)

// wasAsked tells the ops that somebody asked for from the cell's own, which have
// neither a request id nor a user. Ops that come by the thousand are not decoded
// for it.
func wasAsked(op []byte) bool {
	asked := false
	fields(op, func(field protowire.Number, value []byte) {
		switch field {
		case opRequestIDField:
			asked = asked || len(value) > 0
		case opPrincipalField:
			fields(value, func(field protowire.Number, value []byte) {
				asked = asked || field == principalUserField && len(value) > 0
			})
		}
	})
	return asked
}

// fields calls f with each field of a message that has a length; others are
// passed over, and so is what cannot be read.
func fields(message []byte, f func(protowire.Number, []byte)) {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		if kind == protowire.BytesType {
			value, n := protowire.ConsumeBytes(message)
			if n < 0 {
				return
			}
			f(field, value)
			message = message[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(field, kind, message); n < 0 {
			return
		}
		message = message[n:]
	}
}

// RecordOf is the record of an op as it is in the log, with what came of it. Nil:
// it cannot be read. It refers to data, which must not be changed afterwards.
func RecordOf(data []byte, result *borgpb.Result) *borgpb.AuditRecord {
	var r *borgpb.AuditRecord
	var contentBytes int
	if result.GetRefusal().GetKind() == borgpb.RefusalKind_REFUSAL_KIND_MALFORMED {
		// Perhaps it cannot be read.
		op := new(borgpb.Op)
		if proto.Unmarshal(data, op) != nil {
			return nil
		}
		r, contentBytes = Asked(op), len(op.GetWriteFile().GetContent())
	} else {
		r, contentBytes = readOff(data)
	}
	r.Refusal, r.Uid, r.Version = result.GetRefusal(), result.GetUid(), result.GetVersion()
	if len(data) <= maxOpBytes && contentBytes <= maxContentBytes {
		r.Op = data
	} else {
		hash := sha256.Sum256(data)
		r.OpHash = hash[:]
	}
	return r
}

// Asked is a record of what an op asks for, and by whom.
func Asked(op *borgpb.Op) *borgpb.AuditRecord {
	verb, object := describe(op)
	return &borgpb.AuditRecord{
		Role: op.GetPrincipal().GetRole(), Who: cmp.Or(op.GetPrincipal().GetTask(), op.GetPrincipal().GetUser()), Verb: verb, Object: object,
		Command: op.GetCommand(), ConfigHash: op.GetConfigHash(), Reason: op.GetReason(), RequestId: op.GetRequestId(),
	}
}

// describe says what kind of op it is, and what it is about. Both are read off
// the message, so that a new op needs nothing here: by its fields user and name.
func describe(op *borgpb.Op) (verb, object string) {
	m := op.ProtoReflect()
	which := m.WhichOneof(m.Descriptor().Oneofs().ByName("op"))
	if which == nil {
		return "", ""
	}
	of := m.Get(which).Message()
	text := func(name protoreflect.Name) string {
		if f := of.Descriptor().Fields().ByName(name); f != nil && f.Kind() == protoreflect.StringKind && !f.IsList() {
			return of.Get(f).String()
		}
		return ""
	}
	return verbOf(which.Name()), objectOf(text("user"), text("name"))
}

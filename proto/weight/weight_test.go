package weight_test

import (
	"fmt"
	"runtime"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	_ "borg/proto/borgrpc"
	"borg/proto/weight"
)

// inUse returns the bytes of the heap that are in use.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// requests returns the types of messages that callers of the cell's services send.
func requests(t *testing.T) (all []protoreflect.MessageType) {
	seen := make(map[protoreflect.FullName]bool)
	protoregistry.GlobalFiles.RangeFilesByPackage("borgrpc", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			for j := range f.Services().Get(i).Methods().Len() {
				name := f.Services().Get(i).Methods().Get(j).Input().FullName()
				mt, err := protoregistry.GlobalTypes.FindMessageByName(name)
				if err != nil {
					t.Fatal(err)
				}
				if !seen[name] {
					seen[name] = true
					all = append(all, mt)
				}
			}
		}
		return true
	})
	if len(all) < 40 {
		t.Fatalf("only %d types of requests were found", len(all))
	}
	return all
}

// eachFill calls try with messages of type md in which one field occurs as often as it fits
// into so many bytes, with as little in it as can be: for each field, however deep.
func eachFill(md protoreflect.MessageDescriptor, size, depth int, where string, try func(where string, data []byte)) {
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		at := fmt.Sprint(where, ".", fd.Name())
		var one []byte
		switch {
		case fd.Message() != nil || fd.Kind() == protoreflect.StringKind || fd.Kind() == protoreflect.BytesKind:
			one = protowire.AppendBytes(protowire.AppendTag(nil, fd.Number(), protowire.BytesType), nil)
		case fd.IsList():
			// Zeros, packed: of each kind of number some are read.
			numbers := make([]byte, size)
			try(at+" packed", protowire.AppendBytes(protowire.AppendTag(nil, fd.Number(), protowire.BytesType), numbers))
			continue
		default:
			continue
		}
		if fd.IsMap() {
			many := dynamicpb.NewMessage(md)
			entries := many.Mutable(fd).Map()
			for n := range size / 16 {
				key, value := protoreflect.ValueOfString(fmt.Sprint(n)), entries.NewValue()
				if fd.MapKey().Kind() != protoreflect.StringKind {
					continue
				}
				entries.Set(key.MapKey(), value)
			}
			if data, err := proto.Marshal(many); err == nil && len(data) > 0 {
				try(at+" of many keys", data)
			}
		}
		data := make([]byte, 0, size)
		for len(data)+len(one) <= size {
			data = append(data, one...)
		}
		try(at, data)
		if fd.Message() != nil && !fd.IsMap() && depth > 0 {
			eachFill(fd.Message(), size, depth-1, at, func(where string, inner []byte) {
				try(where, protowire.AppendBytes(protowire.AppendTag(nil, fd.Number(), protowire.BytesType), inner))
			})
		}
	}
}

// TestWeightCoversRequests: a decoded request takes at most what is weighed of it, whatever
// its bytes are spent on.
func TestWeightCoversRequests(t *testing.T) {
	const size, copies = 4 << 10, 20
	tried := 0
	for _, mt := range requests(t) {
		shape := weight.Of(mt.Descriptor(), nil)
		eachFill(mt.Descriptor(), size, 4, string(mt.Descriptor().Name()), func(where string, data []byte) {
			w := shape.Weigh(data, 1<<30)
			kept := make([]proto.Message, copies)
			before := inUse()
			for i := range kept {
				kept[i] = mt.New().Interface()
				if err := proto.Unmarshal(data, kept[i]); err != nil {
					t.Fatalf("%s: %v", where, err)
				}
			}
			took := (inUse() - before) / copies
			runtime.KeepAlive(kept)
			tried++
			if took > w.Bytes+w.Bytes/8+1024 {
				t.Errorf("%s: %d bytes on the wire, %d elements, take %d in memory; weighed %d", where, len(data), w.Elements, took, w.Bytes)
			}
		})
	}
	t.Logf("%d messages", tried)
}

// TestWrongWireTypes: a value that is encoded in another way than its field weighs what it
// takes, since it is kept as it came.
func TestWrongWireTypes(t *testing.T) {
	const size = 32 << 10
	for _, mt := range requests(t) {
		shape := weight.Of(mt.Descriptor(), nil)
		for i := range mt.Descriptor().Fields().Len() {
			fd := mt.Descriptor().Fields().Get(i)
			data := protowire.AppendTag(nil, fd.Number(), protowire.StartGroupType)
			data = protowire.AppendBytes(protowire.AppendTag(data, 1, protowire.BytesType), make([]byte, size))
			data = protowire.AppendTag(data, fd.Number(), protowire.EndGroupType)
			if w := shape.Weigh(data, 1<<30); w.Bytes < size {
				t.Errorf("%s as a group of %d bytes weighs %d", fd.FullName(), size, w.Bytes)
			}
			if fd.IsList() || fd.Message() != nil || fd.Kind() == protoreflect.StringKind || fd.Kind() == protoreflect.BytesKind {
				continue
			}
			data = protowire.AppendBytes(protowire.AppendTag(nil, fd.Number(), protowire.BytesType), make([]byte, size))
			if w := shape.Weigh(data, 1<<30); w.Bytes < size {
				t.Errorf("%s, a number, as %d bytes weighs %d", fd.FullName(), size, w.Bytes)
			}
		}
	}
}

// TestWeighStops: no more elements are looked at than were asked for, and what is not
// encoded well is weighed as far as it goes.
func TestWeighStops(t *testing.T) {
	mt, err := protoregistry.GlobalTypes.FindMessageByName("borgrpc.ValidateRequest")
	if err != nil {
		t.Fatal(err)
	}
	shape := weight.Of(mt.Descriptor(), nil)
	var data []byte
	for range 1000 {
		data = append(data, 0x0a, 0)
	}
	if w := shape.Weigh(data, 10); w.Elements != 11 {
		t.Errorf("%d elements were looked at, want 11", w.Elements)
	}
	if w := shape.Weigh(data, 1000); w.Elements != 1000 {
		t.Errorf("%d elements, want 1000", w.Elements)
	}
	if w := shape.Weigh(append(data[:20], 0x0a, 0xff), 1000); w.Elements != 10 {
		t.Errorf("%d elements before what cannot be read, want 10", w.Elements)
	}
}

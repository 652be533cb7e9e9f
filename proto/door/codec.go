package door

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // The codec that is wrapped.
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// pooledBytes is the largest message that gRPC's pool has a buffer of about its size for. A
// larger one would get a buffer of 1 MiB, for as long as its client does not read it.
const pooledBytes = 32 << 10

// requestCodec decodes messages into incomings, and has nothing to say to gRPC when it
// cannot. It encodes each in a buffer that is not much larger.
type requestCodec struct{ encoding.CodecV2 }

func newRequestCodec() encoding.CodecV2 { return requestCodec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c requestCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok || proto.Size(m) <= pooledBytes {
		return c.CodecV2.Marshal(v)
	}
	b, err := proto.MarshalOptions{UseCachedSize: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (c requestCodec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*incoming)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	all := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer all.Free()
	in.err = in.decode(all.ReadOnlyData())
	return nil
}

// answerCodec decodes the answers of a borglet, which may be in anybody's hands.
type answerCodec struct{ encoding.CodecV2 }

func newAnswerCodec() encoding.CodecV2 { return answerCodec{encoding.GetCodecV2("proto")} }

// Unmarshal implements encoding.CodecV2.
func (c answerCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	all := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer all.Free()
	of := m.ProtoReflect().Descriptor()
	if w := shapes.of(of).Weigh(all.ReadOnlyData(), maxAnswerElements); w.Elements > maxAnswerElements || w.Bytes > maxAnswerBytes {
		return fmt.Errorf("a %s of %d bytes takes more than %d MiB in memory", of.Name(), all.Len(), maxAnswerBytes>>20)
	}
	return proto.Unmarshal(all.ReadOnlyData(), m)
}

// malformed returns the error for a message that cannot be decoded.
func malformed(of protoreflect.MessageDescriptor, data []byte, err error) error {
	if field := notText(of, data, string(of.Name())); field != "" {
		return status.Errorf(codes.InvalidArgument, "%s is not text: want UTF-8", field)
	}
	return status.Errorf(codes.InvalidArgument, "this is no %s: %v", of.Name(), err)
}

// notText names the first field with a text that is not UTF-8; empty: there is none.
func notText(of protoreflect.MessageDescriptor, data []byte, where string) string {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return ""
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, kind, data); n < 0 {
			return ""
		}
		field := of.Fields().ByNumber(number)
		if field != nil && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(data)
			name := fmt.Sprint(where, ".", field.Name())
			switch {
			case field.Kind() == protoreflect.StringKind && !utf8.Valid(value):
				return name
			case field.Kind() == protoreflect.MessageKind:
				if found := notText(field.Message(), value, name); found != "" {
					return found
				}
			}
		}
		data = data[n:]
	}
	return ""
}

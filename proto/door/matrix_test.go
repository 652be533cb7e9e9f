package door_test

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

var rewrite = flag.Bool("rewrite", false, "write the files in testdata anew; read the diff")

// calls are all of all services, by name.
func calls() []protoreflect.MethodDescriptor {
	var all []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFilesByPackage("borgrpc", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				all = append(all, methods.Get(j))
			}
		}
		return true
	})
	slices.SortFunc(all, func(a, b protoreflect.MethodDescriptor) int { return strings.Compare(path(a), path(b)) })
	return all
}

func path(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

// TestEachCallIsInTheTable: a new call needs a word on who may make it.
func TestEachCallIsInTheTable(t *testing.T) {
	table := door.Access()
	for _, m := range calls() {
		if len(table[path(m)]) == 0 {
			t.Errorf("%s is not in the table of who may call what: add it to proto/door/access.go", path(m))
		}
		delete(table, path(m))
	}
	for method := range table {
		t.Errorf("%s is in the table of who may call what, and no service has it", method)
	}
}

// show is a client that shows a certificate, whatever it is worth, and believes
// whoever answers.
func show(t *testing.T, addr string, c *identity.Credential) *grpc.ClientConn {
	t.Helper()
	config := source(t, identity.User, "nobody").ClientTLS(name(identity.Master, ""))
	config.VerifyConnection = nil
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if c == nil {
			return &tls.Certificate{}, nil
		}
		return c.TLS(), nil
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// columns are all who try a call, after those whom the handshake keeps out. What
// stands in a role's column is what comes of the right caller of that role, and
// of anybody of it where the role may not call.
var (
	badCertificates = []string{"none", "expired", "early", "otherCA", "otherCell"}
	roleColumns     = []identity.Role{identity.User, identity.Master, identity.Scheduler, identity.Borglet, identity.Task, identity.Join}
	otherColumns    = []string{"otherUser", "otherMachine", "otherTask", "removed", "revoked"}
)

// TestMatrix makes every call of every service as everybody: with certificates
// that are none, with those of each role, as another user, machine and task than
// the one that may, as a replica that was removed, and with a certificate that
// was revoked. What decides is all there: objects in the cell, members in the
// log. The right caller comes last, and finds done nothing of what was refused.
func TestMatrix(t *testing.T) {
	t.Parallel()
	m := newMatrix(t)
	var got strings.Builder
	got.WriteString(`# What comes of every call, by who makes it. Made by go test ./proto/door -run Matrix -rewrite.
#
# -     refused in the handshake
# no    refused by the table of roles, as revoked, or because it belongs to somebody else
# yes   done: the right caller of that role
# in    let in, and not done for a reason that has nothing to do with who asks (rows_test.go says which)
# look  done for any user: everybody may look at everything
# own   done for the caller himself, whoever that is
# any   done: see docs/identity.md
#
# otherUser, otherMachine and otherTask have good certificates and make the very
# call of the right one. removed is a replica that was a member. revoked is the
# right caller, with what he had before: a certificate that was revoked, a machine
# or replica that was removed, a token that was used.
`)
	fmt.Fprintf(&got, "%-33s", "call")
	for _, word := range badCertificates {
		fmt.Fprintf(&got, " %-9s", word)
	}
	for _, role := range roleColumns {
		fmt.Fprintf(&got, " %-9s", role)
	}
	for _, word := range otherColumns {
		fmt.Fprintf(&got, " %-12s", word)
	}
	got.WriteString("\n")
	for _, call := range calls() {
		r := m.rows[path(call)]
		delete(m.rows, path(call))
		if r == nil {
			t.Errorf("%s has no row: say in rows_test.go who makes it rightfully, and with what", path(call))
			continue
		}
		fmt.Fprintf(&got, "%-33s%s\n", strings.TrimPrefix(path(call), "/borgrpc."), m.row(call, r))
	}
	for method := range m.rows {
		t.Errorf("%s has a row, and no service has it", method)
	}
	golden(t, "testdata/matrix.txt", got.String())
}

// golden compares text with a file, lines without blanks at their ends.
func golden(t *testing.T, file, text string) {
	t.Helper()
	var trimmed strings.Builder
	for line := range strings.Lines(text) {
		trimmed.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(trimmed.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if trimmed.String() != string(want) {
		t.Errorf("this differs from %s; if that is meant: go test ./proto/door -rewrite, and read the diff\n%s", file, trimmed.String())
	}
}

// row tries one call as everybody.
func (m *matrix) row(call protoreflect.MethodDescriptor, r *row) string {
	var line strings.Builder
	for _, word := range badCertificates {
		got := m.outcome(r.at, m.bad(word, r.asks[0].who), call, r.asks[0].req)
		if got.word != "-" {
			m.t.Errorf("%s with a certificate that is bad (%s): %s", path(call), word, got)
		}
		fmt.Fprintf(&line, " %-9s", got.word)
	}
	// The right ones are made last.
	roles := map[identity.Role]string{}
	allowed := door.Access()[path(call)]
	for _, role := range roleColumns {
		if !slices.Contains(allowed, role) {
			roles[role] = m.refused(call, r, string(role), m.certify(someone(role)), r.asks[0])
		}
	}
	var others []string
	for _, word := range otherColumns {
		others = append(others, m.other(call, r, word))
	}
	for _, a := range r.asks {
		c := a.credential
		if c == nil {
			c = m.certify(a.who)
		}
		got := m.outcome(r.at, c, call, a.req)
		if got.code != a.hears || got.refusal != a.refused {
			m.t.Errorf("%s by %s, who may: %s, want %v", path(call), a.who.Words(), got, a.hears)
		}
		if roles[a.who.Role] = "yes"; a.hears != codes.OK || a.refused != 0 {
			roles[a.who.Role] = "in"
		}
	}
	for _, role := range roleColumns {
		if roles[role] == "" {
			m.t.Errorf("%s is for the role %s too, and its row does not say how that makes it", path(call), role)
		}
		fmt.Fprintf(&line, " %-9s", roles[role])
	}
	for _, word := range others {
		fmt.Fprintf(&line, " %-12s", word)
	}
	return line.String()
}

// other tries a call as somebody else than the right one, for each of those.
func (m *matrix) other(call protoreflect.MethodDescriptor, r *row, column string) string {
	var words []string
	for _, a := range r.asks {
		var c *identity.Credential
		switch column {
		case "otherUser":
			c = m.certify(name(identity.User, "mallory"))
		case "otherMachine":
			c = m.certify(name(identity.Borglet, "m2"))
		case "otherTask":
			c = m.certify(name(identity.Task, "mallory/x/0"))
		case "removed":
			c = m.certify(name(identity.Master, "3"))
		case "revoked":
			a, c = m.revoked(a)
		}
		if word := m.refused(call, r, column, c, a); !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	slices.Sort(words)
	return strings.Join(words, "/")
}

// refused makes somebody's call with a certificate that is not his. Unless the
// row says that it is open, it must be refused for who asks, whatever else may
// be wrong with it.
func (m *matrix) refused(call protoreflect.MethodDescriptor, r *row, column string, c *identity.Credential, a ask) string {
	got := m.outcome(r.at, c, call, a.req)
	if word := r.open[column]; word != "" && got.code == a.hears && got.refusal == a.refused {
		return word
	}
	if got.word != "no" {
		m.t.Errorf("%s, which %s may make, by %s (%s): %s, want a refusal", path(call), a.who.Words(), c.Name.Words(), column, got)
	}
	return got.word
}

// heard is what came of a call.
type heard struct {
	word    string
	code    codes.Code
	refusal borgpb.RefusalKind
	text    string
}

func (h heard) String() string {
	return fmt.Sprintf("%s (%v, %v: %s)", h.word, h.code, h.refusal, h.text)
}

// outcome makes a call and looks at the first message that comes back.
func (m *matrix) outcome(addr string, c *identity.Credential, call protoreflect.MethodDescriptor, req func() proto.Message) heard {
	m.t.Helper()
	conn := show(m.t, addr, c)
	defer conn.Close()
	h := m.outcomeOn(m.t.Context(), conn, call, req)
	// On a busy machine a connection of somebody who was revoked may be cut before
	// his call is refused.
	for range 3 {
		if h.word != "?" || h.code != codes.Unavailable {
			break
		}
		h = m.outcomeOn(m.t.Context(), conn, call, req)
	}
	return h
}

func (m *matrix) outcomeOn(ctx context.Context, conn *grpc.ClientConn, call protoreflect.MethodDescriptor, req func() proto.Message) heard {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	desc := &grpc.StreamDesc{StreamName: string(call.Name()), ServerStreams: call.IsStreamingServer(), ClientStreams: call.IsStreamingClient()}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(call.Output().FullName())
	if err != nil {
		m.t.Fatal(err)
	}
	resp := kind.New().Interface()
	stream, err := conn.NewStream(ctx, desc, path(call))
	if err == nil {
		// Why it could not be sent, the answer says.
		_ = stream.SendMsg(req())
		_ = stream.CloseSend()
		if err = stream.RecvMsg(resp); err == io.EOF {
			err = nil
		}
	}
	if r, ok := resp.(interface{ GetResult() *borgpb.Result }); err == nil && ok && r.GetResult().GetRefusal() != nil {
		refusal := r.GetResult().GetRefusal()
		word := "?"
		if refusal.Kind == borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
			word = "no"
		}
		return heard{word: word, refusal: refusal.Kind, text: refusal.Message}
	}
	h := heard{word: "?", code: status.Code(err), text: door.Reason(err)}
	switch h.code {
	case codes.OK:
		h.word = "yes"
	case codes.PermissionDenied, codes.Unauthenticated:
		h.word = "no"
	case codes.Unavailable:
		if text := err.Error(); strings.Contains(text, "tls: ") || strings.Contains(text, "broken pipe") || strings.Contains(text, "reset by peer") || strings.Contains(text, "server preface") {
			h.word = "-"
		}
	}
	return h
}

// TestEveryPort: no door of a cell speaks to who shows nothing, or speaks an
// older TLS.
func TestEveryPort(t *testing.T) {
	rc := newRealCell(t)
	for what, addr := range map[string]string{"a master": rc.addr, "a borglet": rc.addMachine("m1").addr} {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if resp, err := borgrpc.NewMasterServiceClient(conn).GetCell(t.Context(), &borgrpc.GetCellRequest{}); status.Code(err) != codes.Unavailable {
			t.Errorf("%s, without TLS: %v, %v, want that nothing is answered", what, resp, err)
		}
		config := source(t, identity.Master, "1").ClientTLS(name(identity.Master, ""))
		config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		if c, err := tls.Dial("tcp", addr, config); err == nil || !strings.Contains(err.Error(), "protocol version") {
			if err == nil {
				c.Close()
			}
			t.Errorf("%s, with TLS 1.2: %v, want that the version is refused", what, err)
		}
	}
}

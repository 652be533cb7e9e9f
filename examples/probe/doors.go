//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"borg/borgmaster/client"
	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// callWait bounds a call. Who is refused hears so at once; a watch on which nothing
// happens was let in.
const callWait = 10 * time.Second

// doors calls the borglet and a master, as somebody without papers and as the task.
func (p *probe) doors() {
	methods := slices.Sorted(maps.Keys(door.Access()))
	papers, papersErr := identity.ReadCredential(os.Getenv("BORG_IDENTITY"))
	var master string
	if file, err := client.ReadCellFile(os.Getenv("BORG_CELL_FILE")); err == nil {
		master = file.Masters[0]
	}
	for _, d := range []struct{ name, addr, ask string }{
		{"agent", p.out.agent, "/borgrpc.BorgletService/Poll"},
		{"master", master, "/borgrpc.MasterService/GetCell"},
	} {
		p.tell("door."+d.name+".in-the-clear", "%s", knock(d.addr, insecure.NewCredentials(), d.ask))
		// Whoever answers is believed: it is the other end that is looked at.
		p.tell("door."+d.name+".without-papers", "%s", knock(d.addr, credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}), d.ask))
		if papersErr != nil {
			p.try("door."+d.name+".with-papers", papersErr)
			continue
		}
		shown := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*papers.TLS()}})
		answers, refused := each(d.addr, shown, methods)
		p.tell("door."+d.name+".answers", "%s", answers)
		p.tell("door."+d.name+".refuses", "%s", refused)
	}
}

// knock makes one call, and says what became of it.
func knock(addr string, as credentials.TransportCredentials, method string) string {
	ctx, cancel := context.WithTimeout(context.Background(), callWait)
	defer cancel()
	// Nobody there is not a refusal.
	there, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return outcome(err)
	}
	there.Close()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(as))
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	switch code := call(ctx, conn, method); code {
	case codes.Unavailable:
		return "hangs up"
	case codes.PermissionDenied, codes.Unauthenticated:
		return code.String()
	default:
		return "answers: " + code.String()
	}
}

// each makes every call, and says which were answered and how others were refused.
func each(addr string, as credentials.TransportCredentials, methods []string) (answers, refused string) {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(as))
	if err != nil {
		return err.Error(), ""
	}
	defer conn.Close()
	var let, how []string
	for _, method := range methods {
		ctx, cancel := context.WithTimeout(context.Background(), callWait)
		code := call(ctx, conn, method)
		cancel()
		switch code {
		case codes.PermissionDenied, codes.Unauthenticated, codes.Unavailable, codes.Unimplemented:
			if !slices.Contains(how, code.String()) {
				how = append(how, code.String())
			}
		default:
			let = append(let, strings.TrimPrefix(method, "/borgrpc."))
		}
	}
	slices.Sort(how)
	return orNone(strings.Join(let, " ")), orNone(strings.Join(how, " "))
}

// call makes a call of any kind, with an empty message where that will do, and returns what it was
// answered with first.
func call(ctx context.Context, conn *grpc.ClientConn, method string) codes.Code {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return status.Code(err)
	}
	var message proto.Message = &emptypb.Empty{}
	if method == borgrpc.MasterService_GetJob_FullMethodName {
		// A job of nobody's is not its user's, and is refused as that.
		message = &borgrpc.GetJobRequest{User: os.Getenv("BORG_USER"), Name: os.Getenv("BORG_JOB")}
	}
	// Of a call that has ended, what is received says why.
	_ = stream.SendMsg(message)
	_ = stream.CloseSend()
	return status.Code(stream.RecvMsg(&emptypb.Empty{}))
}

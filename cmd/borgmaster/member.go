package main

import (
	"context"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	ucli "github.com/urfave/cli/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/cli"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// callTimeout bounds one call to a master; it may wait for an election.
const callTimeout = 10 * time.Second

func memberCommand() *ucli.Command {
	which := []ucli.Flag{identityFlag(), cellFlag()}
	return &ucli.Command{
		Name:  "member",
		Usage: "see and change which replicas a running cell has",
		Subcommands: []*ucli.Command{
			{Name: "list", Usage: "say which replicas the cell has", Flags: which, Action: listMembers},
			{Name: "add", Usage: "take a replica in; it votes once it has caught up", ArgsUsage: "NUMBER HOST:PORT", Flags: which, Action: addMember},
			{Name: "promote", Usage: "give a replica that has caught up its vote", ArgsUsage: "NUMBER", Flags: which,
				Action: changeMember("promote", func(ctx context.Context, c borgrpc.MemberServiceClient, id uint64) error {
					_, err := c.PromoteMember(ctx, &borgrpc.PromoteMemberRequest{Id: id})
					return err
				})},
			{Name: "remove", Usage: "take a replica out, for good: its number is not used again", ArgsUsage: "NUMBER", Flags: which,
				Action: changeMember("remove", func(ctx context.Context, c borgrpc.MemberServiceClient, id uint64) error {
					_, err := c.RemoveMember(ctx, &borgrpc.RemoveMemberRequest{Id: id})
					return err
				})},
		},
	}
}

func listMembers(ctx *ucli.Context) error {
	return withMembers(ctx, "list the members", func(call context.Context, c borgrpc.MemberServiceClient) error {
		resp, err := c.ListMembers(call, &borgrpc.ListMembersRequest{})
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(ctx.App.Writer, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "REPLICA\tADDRESS\tROLE\tLINK SHARD")
		for _, m := range resp.Members {
			role, shard := "voter", "silent"
			if m.Learner {
				role = "learner"
			}
			if m.Elected {
				role = "elected"
			}
			if m.Live {
				shard = "live"
			}
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", m.GetMember().GetId(), m.GetMember().GetAddr(), role, shard)
		}
		return w.Flush()
	})
}

func addMember(ctx *ucli.Context) error {
	id, err := memberNumber(ctx, 2, "add NUMBER HOST:PORT")
	if err != nil {
		return err
	}
	addr := ctx.Args().Get(1)
	if err := checkAddr("member add", addr); err != nil {
		return err
	}
	return withMembers(ctx, fmt.Sprintf("add replica %d", id), func(call context.Context, c borgrpc.MemberServiceClient) error {
		_, err := c.AddMember(call, &borgrpc.AddMemberRequest{Member: &borgpb.Member{Id: id, Addr: addr}})
		return err
	})
}

func changeMember(verb string, change func(context.Context, borgrpc.MemberServiceClient, uint64) error) ucli.ActionFunc {
	return func(ctx *ucli.Context) error {
		id, err := memberNumber(ctx, 1, verb+" NUMBER")
		if err != nil {
			return err
		}
		return withMembers(ctx, fmt.Sprintf("%s replica %d", verb, id), func(call context.Context, c borgrpc.MemberServiceClient) error {
			return change(call, c, id)
		})
	}
}

func memberNumber(ctx *ucli.Context, args int, usage string) (uint64, error) {
	id, err := strconv.ParseUint(ctx.Args().First(), 10, 32)
	if err != nil || id == 0 || ctx.NArg() != args {
		return 0, cli.Errorf(cli.Usage, "want the number of a replica, from 1").Hint("borgmaster member %s", usage)
	}
	return id, nil
}

func cellFlag() ucli.Flag {
	return &ucli.StringFlag{Name: "cell", Aliases: []string{"master"}, Usage: "`CELL`: path of a cell file, host:port[,host:port], or a name in the user's configuration (default: as borgcfg finds it)"}
}

// cellArgs are the flags, each after a blank, with which a command that a hint names asks the
// same cell as the same user as this command line does.
func cellArgs(ctx *ucli.Context, cell string) string {
	args := ""
	if cell != "" {
		args += " --cell " + cli.Quote(cell)
	}
	if ctx.IsSet("identity") {
		args += " --identity " + cli.Quote(ctx.String("identity"))
	}
	return args
}

// withMembers makes a call on the first master that answers.
func withMembers(ctx *ucli.Context, what string, call func(context.Context, borgrpc.MemberServiceClient) error) error {
	return onAnyMaster(ctx, what, func(ctx context.Context, conn *grpc.ClientConn) error {
		return call(ctx, borgrpc.NewMemberServiceClient(conn))
	})
}

// onAnyMaster makes a call on the first master that answers.
func onAnyMaster(ctx *ucli.Context, what string, call func(context.Context, *grpc.ClientConn) error) error {
	place, err := lookup(ctx).Find()
	if err != nil {
		return cli.Errorf(cli.Invalid, "%s: %w", what, err).Hint("say which cell: --cell HOST:PORT of any of its replicas")
	}
	who, err := openSource(place)
	if err != nil {
		return err
	}
	for _, addr := range place.Masters {
		var conn *grpc.ClientConn
		if conn, err = dialMaster(who, addr); err != nil {
			return err
		}
		one, cancel := context.WithTimeout(ctx.Context, callTimeout)
		err = call(one, conn)
		cancel()
		conn.Close()
		if status.Code(err) != codes.Unavailable {
			break
		}
	}
	return masterError(what, err)
}

func dialMaster(who *identity.Source, addr string) (*grpc.ClientConn, error) {
	if err := checkAddr("the address of a master", addr); err != nil {
		return nil, err
	}
	return door.Dial(addr, who, door.AnyMaster(who))
}

// masterError gives what a master answered an exit code.
func masterError(what string, err error) error {
	if err == nil {
		return nil
	}
	code := cli.Failed
	switch status.Code(err) {
	case codes.Unavailable:
		code = cli.Unreachable
	case codes.DeadlineExceeded:
		code = cli.TimedOut
	case codes.PermissionDenied, codes.Unauthenticated:
		code = cli.NotAllowed
	case codes.FailedPrecondition, codes.ResourceExhausted:
		code = cli.Refused
	case codes.NotFound:
		code = cli.NotFound
	case codes.InvalidArgument:
		code = cli.Usage
	}
	if door.Distrusted(err) {
		code = cli.NotAllowed
	}
	return cli.Errorf(code, "%s: %s", what, door.Reason(err))
}

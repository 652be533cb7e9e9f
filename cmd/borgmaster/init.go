package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/replica"
	"borg/cfg"
	"borg/checkpoint"
	"borg/cli"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func initCommand() *ucli.Command {
	return &ucli.Command{
		Name:  "init",
		Usage: "make the directory of a replica",
		UsageText: "borgmaster init --cell NAME --replica N --members 1=HOST:PORT,2=HOST:PORT,... [--cell-id ID --authority FILE]\n" +
			"borgmaster init --join HOST:PORT --replica N --addr HOST:PORT",
		Description: "The first form makes one replica of a new cell. Run it once for each member, all with the\n" +
			"same --cell-id: it tells two cells of one name apart, for ever. The first one makes the\n" +
			"cell's authority and a key for its secrets; give its files authority.pem and\n" +
			"cell-keys.json, side by side, to the others with --authority authority.pem.\n\n" +
			"The second form adds a replica to a cell that runs. It gets a number that was never used\n" +
			"before, also when it takes the place of one that lost its disk.",
		Flags: []ucli.Flag{
			&ucli.StringFlag{Name: "cell", Usage: "`NAME` of the cell"},
			&ucli.StringFlag{Name: "cell-id", Usage: "`ID` of the cell, the same for all its replicas (default for a cell of one: made at random)"},
			&ucli.Uint64Flag{Name: "replica", Usage: "`NUMBER` of this replica, from 1"},
			&ucli.StringFlag{Name: "members", Usage: "number and address of `EACH` replica, 1=HOST:PORT,2=HOST:PORT,..."},
			&ucli.StringFlag{Name: "authority", Usage: "`FILE` authority.pem of another replica of the new cell (default: a new authority)"},
			&ucli.StringFlag{Name: "admin", Usage: "`USER` who may do everything in the new cell, until that is granted (default: the user who runs this)"},
			identityFlag(),
			&ucli.StringFlag{Name: "join", Usage: "`ADDRESS` of any replica of a running cell to join"},
			&ucli.StringFlag{Name: "addr", Usage: "with --join: `ADDRESS` at which the others reach this replica"},
			&ucli.StringFlag{Name: "dir", Usage: "`DIRECTORY` of the replica (default: " + cli.StateDir("CELL", "N") + ")"},
		},
		Action: func(ctx *ucli.Context) error {
			if ctx.NArg() > 0 {
				return cli.Errorf(cli.Usage, "init takes no arguments, but %q was given", ctx.Args().First()).Hint("see: borgmaster init --help")
			}
			if ctx.Uint64("replica") == 0 {
				return cli.Errorf(cli.Usage, "init needs --replica NUMBER, from 1").Hint("see: borgmaster init --help")
			}
			if ctx.IsSet("join") {
				return joinCell(ctx)
			}
			return initCell(ctx)
		},
	}
}

// initCell makes one replica of a new cell.
func initCell(ctx *ucli.Context) error {
	id := &borgpb.ReplicaIdentity{CellName: ctx.String("cell"), CellId: ctx.String("cell-id"), Epoch: 1, Replica: ctx.Uint64("replica")}
	if err := checkCellName(id.CellName); err != nil {
		return err
	}
	var err error
	if id.Members, err = parseMembers(ctx.String("members")); err != nil {
		return err
	}
	if !slices.ContainsFunc(id.Members, func(m *borgpb.Member) bool { return m.Id == id.Replica }) {
		return cli.Errorf(cli.Usage, "--replica %d is not among --members %s", id.Replica, ctx.String("members"))
	}
	if id.CellId == "" {
		if id.CellId, err = newCellID(); err != nil {
			return err
		}
		if len(id.Members) > 1 {
			return cli.Errorf(cli.Usage, "the %d replicas of the new cell need one --cell-id, the same for all", len(id.Members)).
				Hint("add to each init: --cell-id %s", id.CellId)
		}
	}
	if len(id.CellId) > 64 || cfg.DNSLabel(id.CellId) != id.CellId {
		return cli.Errorf(cli.Usage, "--cell-id %q: want at most 63 of a-z, 0-9 and dashes", id.CellId)
	}
	if id.Admin = ctx.String("admin"); id.Admin == "" {
		id.Admin = localUser()
	}
	if cfg.DNSLabel(id.Admin) != id.Admin {
		return cli.Errorf(cli.Usage, "--admin %q cannot be part of a DNS name", id.Admin).Hint("letters a-z, digits and dashes; did you mean %q?", cfg.DNSLabel(id.Admin))
	}
	authority, err := authorityForInit(id.CellName, ctx.String("authority"))
	if err != nil {
		return err
	}
	keys, err := keysForInit(ctx.String("authority"))
	if err != nil {
		return err
	}
	if err := makeReplica(ctx, id, authority, keys); err != nil {
		return err
	}
	fmt.Fprintf(ctx.App.ErrWriter, "be its admin %s: borgmaster login --dir %s\n", id.Admin, replicaDir(ctx, id.CellName, id.Replica))
	return nil
}

// joinCell makes a replica of a running cell and has the cell take it in.
func joinCell(ctx *ucli.Context) error {
	if ctx.IsSet("members") {
		return cli.Errorf(cli.Usage, "--join and --members exclude each other: who the members are is asked of the cell")
	}
	if err := checkAddr("--addr", ctx.String("addr")); err != nil {
		return err
	}
	who, err := sourceFor(ctx)
	if err != nil {
		return err
	}
	conn, err := dialMaster(who, ctx.String("join"))
	if err != nil {
		return err
	}
	defer conn.Close()
	call, cancel := context.WithTimeout(ctx.Context, callTimeout)
	defer cancel()
	is, err := borgrpc.NewMasterServiceClient(conn).GetCell(call, &borgrpc.GetCellRequest{})
	if err != nil {
		return masterError("ask the cell at "+ctx.String("join")+" who it is", err)
	}
	if want := ctx.String("cell"); want != "" && want != is.CellName {
		return cli.Errorf(cli.Conflict, "the replica at %s is of cell %q, not %q", ctx.String("join"), is.CellName, want)
	}
	me := &borgpb.Member{Id: ctx.Uint64("replica"), Addr: ctx.String("addr")}
	id := &borgpb.ReplicaIdentity{
		CellName: is.CellName, CellId: is.CellId, Epoch: is.Epoch, Replica: me.Id, Join: true,
		Members: append(is.Members, me),
	}
	if err := checkEmpty(replicaDir(ctx, id.CellName, id.Replica)); err != nil {
		return err
	}
	if _, err := borgrpc.NewMemberServiceClient(conn).AddMember(call, &borgrpc.AddMemberRequest{Member: me}); err != nil {
		return masterError(fmt.Sprintf("add replica %d to cell %s", me.Id, is.CellName), err)
	}
	authority, keys, err := fetchAuthority(call, who, ctx.String("join"), me.Id)
	if err != nil {
		return cli.Errorf(cli.Failed, "get the authority of cell %s: %w", id.CellName, err).Hint("the replica was added; take it out again: borgmaster member remove%s %d", cellArgs(ctx, ctx.String("join")), me.Id)
	}
	return makeReplica(ctx, id, authority, keys)
}

func makeReplica(ctx *ucli.Context, id *borgpb.ReplicaIdentity, authority, keys []byte) error {
	dir := replicaDir(ctx, id.CellName, id.Replica)
	if err := checkEmpty(dir); err != nil {
		return err
	}
	// Before the rest: a directory with an owner is a whole one.
	if err := identity.WriteSecret(authorityFile(dir), authority); err != nil {
		return cli.Errorf(cli.Failed, "keep the cell's authority: %w", err)
	}
	if len(keys) > 0 {
		if err := identity.WriteSecret(keysFile(dir), keys); err != nil {
			return cli.Errorf(cli.Failed, "keep the cell keys: %w", err)
		}
	}
	if err := replica.Init(checkpoint.Config{Dir: dir}, id); err != nil {
		return cli.Errorf(cli.Failed, "make replica %d: %w", id.Replica, err)
	}
	fmt.Fprintf(ctx.App.Writer, "replica %d of cell %s (%s) is in %s\n", id.Replica, id.CellName, id.CellId, dir)
	fmt.Fprintf(ctx.App.ErrWriter, "start it: borgmaster serve --dir %s\n", dir)
	return nil
}

// checkEmpty refuses a directory that holds anything.
func checkEmpty(dir string) error {
	names, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || (err == nil && len(names) == 0) {
		return nil
	}
	if err != nil {
		return cli.Errorf(cli.Failed, "look into %s: %w", dir, err)
	}
	if id, err := checkpoint.ReadIdentity(nil, dir); err == nil {
		return cli.Errorf(cli.Conflict, "directory %s already belongs to replica %d of cell %s (%s)", dir, id.Replica, id.CellName, id.CellId).
			Hint("start it: borgmaster serve --dir %s\nor give another --dir", dir)
	}
	return cli.Errorf(cli.Conflict, "directory %s is not empty: it holds %s", dir, names[0].Name()).Hint("give an empty --dir")
}

// replicaDir is --dir or where a replica lies by default.
func replicaDir(ctx *ucli.Context, cell string, replica uint64) string {
	if dir := ctx.String("dir"); dir != "" {
		return dir
	}
	return cli.StateDir(cell, strconv.FormatUint(replica, 10))
}

func parseMembers(text string) ([]*borgpb.Member, error) {
	if text == "" {
		return nil, cli.Errorf(cli.Usage, "init needs --members 1=HOST:PORT,2=HOST:PORT,... with all replicas of the new cell")
	}
	var members []*borgpb.Member
	for part := range strings.SplitSeq(text, ",") {
		number, addr, _ := strings.Cut(strings.TrimSpace(part), "=")
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil || n == 0 {
			return nil, cli.Errorf(cli.Usage, "--members: %q: want NUMBER=HOST:PORT with a number from 1", part)
		}
		if err := checkAddr("--members: "+part, addr); err != nil {
			return nil, err
		}
		for _, m := range members {
			if m.Id == n || m.Addr == addr {
				return nil, cli.Errorf(cli.Usage, "--members: %q: number %d or address %s is there twice", part, n, addr)
			}
		}
		members = append(members, &borgpb.Member{Id: n, Addr: addr})
	}
	return members, nil
}

func checkAddr(what, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if n, e := strconv.Atoi(port); err != nil || host == "" || e != nil || n < 1 || n > 65535 {
		return cli.Errorf(cli.Usage, "%s: want an address HOST:PORT, not %q", what, addr)
	}
	return nil
}

func checkCellName(name string) error {
	if name == "" {
		return cli.Errorf(cli.Usage, "init needs --cell NAME").Hint("see: borgmaster init --help")
	}
	if label := cfg.DNSLabel(name); label != name {
		return cli.Errorf(cli.Usage, "--cell %q cannot be part of a DNS name", name).Hint("letters a-z, digits and dashes; did you mean %q?", label)
	}
	return nil
}

// newCellID is 16 random bytes, hex.
func newCellID() (string, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("make a cell id: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

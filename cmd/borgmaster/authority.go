package main

import (
	"context"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	ucli "github.com/urfave/cli/v2"
	"google.golang.org/grpc"

	"borg/checkpoint"
	"borg/cli"
	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// A borglet renews after half a week, users when they use theirs after half a
	// day: by then everybody who is there has heard of the next authority.
	defaultWait = 4 * 24 * time.Hour
	// Certificates live for a week at most.
	defaultOverlap = 8 * 24 * time.Hour
)

func authorityCommand() *ucli.Command {
	which := []ucli.Flag{identityFlag(), cellFlag()}
	return &ucli.Command{
		Name:  "authority",
		Usage: "see and replace the authority that issues the certificates of a cell",
		Subcommands: []*ucli.Command{
			{Name: "list", Usage: "say which keys each master has, which one issues, and until when each is believed", Flags: which, Action: listAuthorities},
			{Name: "certificates", Usage: "print the certificates of the cell's authority, PEM, for who logs in with another authority's; no secret", Flags: which, Action: printAuthorities},
			{Name: "replace", Usage: "make the next key; all masters take it, and everybody hears of it with his next certificate", Flags: append(which,
				&ucli.DurationFlag{Name: "wait", Value: defaultWait, Usage: "`TIME` until the next key issues; who has not renewed by then does not believe the masters any more"},
				&ucli.DurationFlag{Name: "overlap", Value: defaultOverlap, Usage: "`TIME` after that until what the present keys issued is not believed any more"}),
				Action: replaceAuthority},
			{Name: "drop", Usage: "make the newest key the only one, at once: whoever has not renewed since it issues must log in or be invited again", Flags: append(which,
				&ucli.BoolFlag{Name: "yes", Usage: "do it"}),
				Action: dropAuthorities},
			{Name: "renew", Usage: "make a new key for a cell whose authority has ended, with all replicas stopped; one that lives is replaced", Description: renewWords, Flags: []ucli.Flag{
				&ucli.StringFlag{Name: "dir", Required: true, Usage: "`DIRECTORY` of a replica"}},
				Action: renewAuthority},
		},
	}
}

const renewWords = "Do it on one replica alone, and copy its authority.pem over those of the others, mode\n" +
	"0600, before they start: replicas with different keys do not believe each other. Users\n" +
	"log in again, and machines are invited again; their tasks go on meanwhile."

// renewAuthority works on the directory of a replica: of a cell whose authority has ended
// nobody can be asked.
func renewAuthority(ctx *ucli.Context) error {
	if ctx.NArg() > 0 {
		return cli.Errorf(cli.Usage, "authority renew takes no arguments, but %q was given", ctx.Args().First()).Hint("see: borgmaster authority renew --help")
	}
	dir := ctx.String("dir")
	id, err := checkpoint.ReadIdentity(nil, dir)
	if err != nil {
		return cli.Errorf(cli.Invalid, "%w", err)
	}
	authority, err := readAuthority(dir, id.CellName)
	if err != nil {
		return err
	}
	next, err := authority.Renewed(time.Now())
	if err != nil {
		return cli.Errorf(cli.NotAllowed, "%w", err).Hint("replace it while the cell runs, and nobody notices: borgmaster authority replace\nusers whose certificates expired: borgmaster login --dir %s", dir)
	}
	data, err := next.Encode()
	if err == nil {
		err = identity.WriteSecret(authorityFile(dir), data)
	}
	if err != nil {
		return cli.Errorf(cli.Failed, "%w", err)
	}
	w := ctx.App.Writer
	fmt.Fprintf(w, "the authority of cell %s is a new one, until %s\n", id.CellName, next.Ends().UTC().Format(time.RFC3339))
	for _, m := range id.Members {
		if m.Id != id.Replica {
			fmt.Fprintf(w, "copy %s to the directory of replica %d at %s, mode 0600\n", authorityFile(dir), m.Id, m.Addr)
		}
	}
	fmt.Fprintf(w, "then start all replicas; users: borgmaster login --dir %s; machines: borgcfg machine invite MACHINE\n", dir)
	return nil
}

// listAuthorities asks each master: they may differ for a while.
func listAuthorities(ctx *ucli.Context) error {
	if ctx.NArg() > 0 {
		return cli.Errorf(cli.Usage, "authority list takes no arguments, but %q was given", ctx.Args().First())
	}
	place, err := lookup(ctx).Find()
	if err != nil {
		return cli.Errorf(cli.Invalid, "list the authorities: %w", err).Hint("say which cell: --cell HOST:PORT,... of its replicas")
	}
	who, err := openSource(place)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(ctx.App.Writer, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "MASTER\tGENERATION\tKEY\tISSUES\tBELIEVED UNTIL")
	var failed error
	addrs := slices.Clone(place.Masters)
	for i := 0; i < len(addrs); i++ {
		addr := addrs[i]
		conn, err := dialMaster(who, addr)
		if err != nil {
			return err
		}
		one, cancel := context.WithTimeout(ctx.Context, callTimeout)
		is, err := borgrpc.NewAuthorityServiceClient(conn).ListAuthorities(one, &borgrpc.ListAuthoritiesRequest{}, grpc.WaitForReady(false))
		if err == nil {
			// Masters may have joined since the cell file was written.
			if cell, failed := borgrpc.NewMasterServiceClient(conn).GetCell(one, &borgrpc.GetCellRequest{}); failed == nil {
				for _, m := range cell.Members {
					if !slices.Contains(addrs, m.Addr) {
						addrs = append(addrs, m.Addr)
					}
				}
			}
		}
		cancel()
		conn.Close()
		if err != nil {
			failed = err
			fmt.Fprintf(w, "%s\t%s\n", addr, cli.Visible(door.Reason(err)))
			continue
		}
		for _, row := range authorityRows(is) {
			fmt.Fprintf(w, "%s\t%d\t%s\n", addr, is.Generation, row)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return masterError("list the authorities", failed)
}

func printAuthorities(ctx *ucli.Context) error {
	if ctx.NArg() > 0 {
		return cli.Errorf(cli.Usage, "authority certificates takes no arguments, but %q was given", ctx.Args().First())
	}
	return onAnyMaster(ctx, "ask for the certificates of the authority", func(call context.Context, conn *grpc.ClientConn) error {
		is, err := borgrpc.NewAuthorityServiceClient(conn).ListAuthorities(call, &borgrpc.ListAuthoritiesRequest{})
		if err != nil {
			return err
		}
		for _, key := range is.GetKeys() {
			if err := pem.Encode(ctx.App.Writer, &pem.Block{Type: "CERTIFICATE", Bytes: key.GetCertificate()}); err != nil {
				return err
			}
		}
		return nil
	})
}

func authorityRows(is *borgrpc.ListAuthoritiesResponse) (rows []string) {
	for _, key := range is.GetKeys() {
		issues := "no more"
		switch from := time.Unix(0, key.GetFromWallNs()); {
		case key.GetIssues():
			issues = "yes"
		case from.After(time.Now()):
			issues = "from " + from.UTC().Format(time.RFC3339)
		}
		fingerprint := hex.EncodeToString(key.GetFingerprint())
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s", fingerprint[:min(16, len(fingerprint))], issues, time.Unix(0, key.GetUntilWallNs()).UTC().Format(time.RFC3339)))
	}
	return rows
}

func replaceAuthority(ctx *ucli.Context) error {
	wait, overlap := ctx.Duration("wait"), ctx.Duration("overlap")
	if ctx.NArg() > 0 || wait < 0 || overlap < 0 {
		return cli.Errorf(cli.Usage, "authority replace takes no arguments, and times from zero on").Hint("see: borgmaster authority replace --help")
	}
	return changeAuthority(ctx, "replace the authority", func(call context.Context, c borgrpc.AuthorityServiceClient) (*borgrpc.ListAuthoritiesResponse, []uint64, error) {
		resp, err := c.ReplaceAuthority(call, &borgrpc.ReplaceAuthorityRequest{WaitNs: int64(wait), OverlapNs: int64(overlap)})
		return resp.GetAuthority(), resp.GetBehind(), err
	})
}

func dropAuthorities(ctx *ucli.Context) error {
	if ctx.NArg() > 0 {
		return cli.Errorf(cli.Usage, "authority drop takes no arguments, but %q was given", ctx.Args().First())
	}
	if !ctx.Bool("yes") {
		return cli.Errorf(cli.Usage, "authority drop makes worthless what all keys but the newest issued: borglets that have not renewed since are invited again, users log in again").
			Hint("who issues now: borgmaster authority list%[1]s\nif that is meant: borgmaster authority drop --yes%[1]s", cellArgs(ctx, ctx.String("cell")))
	}
	return changeAuthority(ctx, "drop the authorities before", func(call context.Context, c borgrpc.AuthorityServiceClient) (*borgrpc.ListAuthoritiesResponse, []uint64, error) {
		resp, err := c.DropAuthorities(call, &borgrpc.DropAuthoritiesRequest{})
		return resp.GetAuthority(), resp.GetBehind(), err
	})
}

func changeAuthority(ctx *ucli.Context, what string, change func(context.Context, borgrpc.AuthorityServiceClient) (*borgrpc.ListAuthoritiesResponse, []uint64, error)) error {
	return onAnyMaster(ctx, what, func(call context.Context, conn *grpc.ClientConn) error {
		is, behind, err := change(call, borgrpc.NewAuthorityServiceClient(conn))
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(ctx.App.Writer, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "KEY\tISSUES\tBELIEVED UNTIL")
		for _, row := range authorityRows(is) {
			fmt.Fprintln(w, row)
		}
		if len(behind) > 0 {
			fmt.Fprintf(ctx.App.ErrWriter, "replicas %s could not be reached; they take it within a minute of being there again\n", strings.Trim(fmt.Sprint(behind), "[]"))
		}
		return w.Flush()
	})
}

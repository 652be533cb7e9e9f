package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/cellkey"
	"borg/borgmaster/client"
	"borg/cfg"
	"borg/checkpoint"
	"borg/cli"
	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// authorityFile is where a replica keeps the cell's authority. Whoever can read
// it can be anybody in the cell.
func authorityFile(dir string) string { return filepath.Join(dir, "authority.pem") }

func readAuthority(dir, cell string) (*identity.Authority, error) {
	path := authorityFile(dir)
	data, err := identity.ReadSecret(path)
	if err != nil {
		return nil, cli.Errorf(cli.Invalid, "the authority of cell %s: %w", cell, err).
			Hint("copy authority.pem from the directory of another replica of the cell, mode 0600\nif this replica was removed from the cell, give it a new number: borgmaster init --join")
	}
	a, err := identity.DecodeAuthority(cell, data, rand.Reader)
	if err != nil {
		return nil, cli.Errorf(cli.Invalid, "%s: %w", path, err)
	}
	return a, nil
}

// certifyError is what came of certifying somebody with the authority in a directory.
func certifyError(err error, dir string) error {
	var ended *identity.EndedError
	if !errors.As(err, &ended) {
		return cli.Errorf(cli.Failed, "%w", err)
	}
	return cli.Errorf(cli.NotAllowed, "%w", err).
		Hint("is the clock of this machine right? then, with all replicas stopped: borgmaster authority renew --dir %s\ncopy its authority.pem to the other replicas; what then: docs/identity.md, \"What expires\"", dir)
}

// keysFile is where a replica keeps the keys of secrets.
func keysFile(dir string) string { return filepath.Join(dir, keysName) }

const keysName = "cell-keys.json"

// readKeys reads the keys of a replica. A replica that was made before there were
// secrets has no file, and gets keys with the first rotation.
func readKeys(dir string) (*cellkey.Ring, error) {
	path := keysFile(dir)
	save := func(data []byte) error { return identity.WriteSecret(path, data) }
	data, err := identity.ReadSecret(path)
	if errors.Is(err, os.ErrNotExist) {
		return cellkey.NewRing(save), nil
	}
	if err != nil {
		return nil, cli.Errorf(cli.Invalid, "the cell keys: %w", err)
	}
	keys, err := cellkey.Decode(data, save)
	if err != nil {
		return nil, cli.Errorf(cli.Invalid, "%s: %w", path, err).
			Hint("copy %s from the directory of another replica of the cell, mode 0600", keysName)
	}
	return keys, nil
}

// keysForInit are a new key, or those that lie beside the authority of another
// replica.
func keysForInit(authority string) ([]byte, error) {
	if authority == "" {
		key, err := cellkey.NewKey()
		if err != nil {
			return nil, cli.Errorf(cli.Failed, "%w", err)
		}
		return cellkey.NewRing(nil, key).Encode()
	}
	path := keysFile(filepath.Dir(authority))
	data, err := keysBeside(authority)
	if err != nil {
		return nil, cli.Errorf(cli.Invalid, "the cell keys: %w", err).Hint("copy %s of the same replica to the side of %s, mode 0600", keysName, authority)
	}
	if _, err := cellkey.Decode(data, nil); err != nil {
		return nil, cli.Errorf(cli.Invalid, "%s: %w", path, err)
	}
	return data, nil
}

func keysBeside(authority string) ([]byte, error) {
	return identity.ReadSecret(keysFile(filepath.Dir(authority)))
}

// authorityForInit is a new authority, or that in a file of another replica.
func authorityForInit(cell, path string) ([]byte, error) {
	if path == "" {
		a, err := identity.NewAuthority(cell, time.Now(), rand.Reader)
		if err != nil {
			return nil, cli.Errorf(cli.Failed, "%w", err)
		}
		return a.Encode()
	}
	data, err := identity.ReadSecret(path)
	if err != nil {
		return nil, cli.Errorf(cli.Invalid, "--authority: %w", err)
	}
	if _, err := identity.DecodeAuthority(cell, data, rand.Reader); err != nil {
		return nil, cli.Errorf(cli.Invalid, "--authority %s: %w", path, err)
	}
	return data, nil
}

// fetchAuthority gets what a member needs to be a whole master, the keys of
// secrets too: it becomes master number at a master of the cell, in the name of an
// admin, and asks for the authority as that.
func fetchAuthority(ctx context.Context, admin *identity.Source, addr string, number uint64) (authority, keys []byte, err error) {
	credential, _, err := client.Certify(ctx, admin, []string{addr}, func(ctx context.Context, c borgrpc.IdentityServiceClient, public ed25519.PublicKey) (*borgrpc.Certificate, error) {
		resp, err := c.CertifyMaster(ctx, &borgrpc.CertifyMasterRequest{Replica: number, PublicKey: public})
		return resp.GetCertificate(), err
	})
	if err != nil {
		return nil, nil, err
	}
	who := identity.NewSource(credential, nil, nil)
	conn, err := door.Dial(addr, who, door.AnyMaster(who))
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	resp, err := borgrpc.NewIdentityServiceClient(conn).GetAuthority(ctx, &borgrpc.GetAuthorityRequest{})
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %s", addr, door.Reason(err))
	}
	if _, err := identity.DecodeAuthority(who.Name().Cell, resp.GetAuthority(), rand.Reader); err != nil {
		return nil, nil, err
	}
	return resp.GetAuthority(), resp.GetCellKeys(), nil
}

func loginCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "login",
		Usage:     "make a certificate for a user, on the machine of a replica, and a cell file that names it",
		UsageText: "borgmaster login --dir DIRECTORY [--user NAME] [--out DIRECTORY]",
		Description: "It needs the replica's directory alone, not a cell that runs: whoever can read that has\n" +
			"the cell's authority, and can be anybody. Others are invited: borgcfg user add NAME.",
		Flags: []ucli.Flag{
			&ucli.StringFlag{Name: "dir", Required: true, Usage: "`DIRECTORY` of a replica"},
			&ucli.StringFlag{Name: "user", Usage: "`NAME` of the user (default: the cell's first admin)"},
			&ucli.StringFlag{Name: "out", Value: ".borg", Usage: "`DIRECTORY` for cell.yaml and identity.pem"},
		},
		Action: login,
	}
}

func login(ctx *ucli.Context) error {
	if ctx.NArg() > 0 {
		return cli.Errorf(cli.Usage, "login takes no arguments, but %q was given", ctx.Args().First()).Hint("see: borgmaster login --help")
	}
	id, err := checkpoint.ReadIdentity(nil, ctx.String("dir"))
	if err != nil {
		return cli.Errorf(cli.Invalid, "%w", err)
	}
	authority, err := readAuthority(ctx.String("dir"), id.CellName)
	if err != nil {
		return err
	}
	name := identity.Name{Cell: id.CellName, Role: identity.User, ID: ctx.String("user")}
	if name.ID == "" {
		name.ID = id.Admin
	}
	if name.ID == "" {
		return cli.Errorf(cli.Usage, "this replica joined a running cell, or was restored, and does not know the cell's first admin").
			Hint("say as whom: borgmaster login --dir %s --user NAME", ctx.String("dir"))
	}
	if err := name.Check(); err != nil {
		return cli.Errorf(cli.Usage, "--user: %w", err)
	}
	credential, err := authority.Certify(name, time.Now(), identity.UserLife)
	if err != nil {
		return certifyError(err, ctx.String("dir"))
	}
	file := &client.CellFile{Cell: id.CellName, CellID: id.CellId, Identity: "identity.pem"}
	path := filepath.Join(ctx.String("out"), "cell.yaml")
	// A cell file that is there may know of masters that joined after this one.
	if has, err := client.ReadCellFile(path); err == nil && has.CellID == id.CellId {
		file.Masters = has.Masters
	}
	for _, m := range id.Members {
		if !slices.Contains(file.Masters, m.Addr) {
			file.Masters = append(file.Masters, m.Addr)
		}
	}
	if err := client.WriteCellFile(path, file); err != nil {
		return cli.Errorf(cli.Failed, "%w", err)
	}
	if err := identity.WriteCredential(filepath.Join(ctx.String("out"), file.Identity), credential); err != nil {
		return cli.Errorf(cli.Failed, "%w", err)
	}
	fmt.Fprintf(ctx.App.Writer, "%s is %s of cell %s until %s\n", path, name.Words(), id.CellName, credential.Expires().UTC().Format(time.RFC3339))
	tellPowers(ctx, credential, file, path)
	return nil
}

// loginWait bounds the question what a user may do: the cell need not run.
const loginWait = 3 * time.Second

// tellPowers says what the user may do in the cell, which a certificate alone does not
// tell, and what to type next.
func tellPowers(ctx *ucli.Context, credential *identity.Credential, file *client.CellFile, path string) {
	is, err := askPowers(ctx.Context, credential, file.Masters)
	w, user := ctx.App.ErrWriter, credential.Name.ID
	switch {
	case err != nil:
		fmt.Fprintf(w, "the cell does not answer now; what user %s may do there: borgcfg --cell %s whoami\n", user, path)
	case len(is.Capabilities) > 0:
		fmt.Fprintf(w, "user %s has the capabilities %s; next: borgcfg --cell %s status\n", user, strings.Join(is.Capabilities, ", "), path)
	case len(is.Admins) == 0:
		fmt.Fprintf(w, "user %s has no capability in this cell, and nobody is its admin\n", user)
	default:
		fmt.Fprintf(w, "user %s has no capability in this cell, whose admins are %s; to be one of them: borgmaster login --dir %s --user %s --out %s\n",
			user, strings.Join(is.Admins, ", "), ctx.String("dir"), is.Admins[0], ctx.String("out"))
	}
}

func askPowers(ctx context.Context, credential *identity.Credential, masters []string) (*borgrpc.WhoAmIResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, loginWait)
	defer cancel()
	m, err := client.New(client.Config{Masters: masters, Identity: identity.NewSource(credential, nil, nil), Timeout: loginWait})
	if err != nil {
		return nil, err
	}
	defer m.Close()
	return m.WhoAmI(ctx)
}

func identityFlag() ucli.Flag {
	return &ucli.StringFlag{Name: "identity", EnvVars: []string{"BORG_IDENTITY"}, Usage: "`FILE` with the certificate to show (default: the one that the cell file names)"}
}

// lookup is where the cell may be named, and who asks.
func lookup(ctx *ucli.Context) client.Lookup {
	return client.Lookup{Flag: ctx.String("cell"), Env: os.Getenv("BORG_CELL"), Identity: ctx.String("identity")}
}

// sourceFor is who asks when the address of the master is given.
func sourceFor(ctx *ucli.Context) (*identity.Source, error) {
	if path := ctx.String("identity"); path != "" {
		return openSource(&client.Place{IdentityPath: path, Origin: "--identity"})
	}
	l := lookup(ctx)
	// init names the cell that is to be; a name is no place.
	if _, _, err := net.SplitHostPort(l.Flag); err != nil && filepath.Base(l.Flag) == l.Flag {
		l.Flag = ""
	}
	place, err := l.Find()
	if err != nil {
		return nil, cli.Errorf(cli.Invalid, "%w", err).Hint("say who asks: --identity FILE")
	}
	return openSource(place)
}

func openSource(place *client.Place) (*identity.Source, error) {
	who, err := place.Source()
	if err != nil {
		return nil, cli.Errorf(cli.NotAllowed, "%w", err).Hint("on the machine of a replica: borgmaster login --dir DIRECTORY\nelsewhere: borgcfg login TOKEN, or --identity FILE")
	}
	return who, nil
}

// localUser is the login name, made fit for DNS.
func localUser() string {
	if u, err := user.Current(); err == nil {
		if label := cfg.DNSLabel(u.Username); label != "" {
			return label
		}
	}
	return "user-" + strconv.Itoa(os.Getuid())
}

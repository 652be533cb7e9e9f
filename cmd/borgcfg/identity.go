package main

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	borgcell "borg/borgmaster/cell"
	"borg/borgmaster/client"
	"borg/borgmaster/verbs"
	"borg/cli"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// login becomes the user that a token names, and makes the cell the one that is
// meant where none is named.
func login(s *session) error {
	if s.flag.IsSet("certificate") || s.flag.IsSet("key") || s.flag.IsSet("authority") {
		return s.loginForeign()
	}
	token, err := client.ReadToken(s.args[0])
	if err != nil {
		return cli.Errorf(cli.Usage, "%w", err).Hint("an admin makes one: borgcfg user add NAME")
	}
	becomes := token.Credential.Name.Becomes()
	if becomes.Role != identity.User {
		return cli.Errorf(cli.Usage, "the token is for %s", becomes.Words()).Hint("give it to its borglet: borglet serve --join TOKEN")
	}
	c, masters, err := client.Certify(s.ctx, identity.NewSource(token.Credential, nil, nil), token.Masters,
		func(ctx context.Context, c borgrpc.IdentityServiceClient, public ed25519.PublicKey) (*borgrpc.Certificate, error) {
			resp, err := c.Join(ctx, &borgrpc.JoinRequest{PublicKey: public})
			return resp.GetCertificate(), err
		})
	if err != nil {
		return cli.Errorf(cli.NotAllowed, "log in as %s: %w", becomes.Words(), err)
	}
	return s.loggedIn(c, masters)
}

// loginForeign becomes the user whom the masters take the holder of another
// authority's certificate for.
func (s *session) loginForeign() error {
	var parts [3][]byte
	for i, flag := range []string{"certificate", "key", "authority"} {
		var err error
		if parts[i], err = os.ReadFile(s.flag.String(flag)); err != nil {
			return cli.Errorf(cli.Usage, "--%s: %w", flag, err).Hint("--certificate, --key and --authority belong together; the last is printed by: borgmaster authority certificates")
		}
	}
	cell, err := identity.CellOf(parts[2])
	if err != nil {
		return cli.Errorf(cli.Invalid, "--authority: %w", err)
	}
	// Who one is, the masters say.
	c, err := identity.NewForeignCredential(identity.Name{Cell: cell, Role: identity.User}, parts[0], parts[1], parts[2])
	if err != nil {
		return cli.Errorf(cli.Invalid, "%w", err)
	}
	masters := strings.Split(s.args[0], ",")
	m, err := client.New(client.Config{Masters: masters, Identity: identity.NewSource(c, nil, nil), Timeout: s.flag.Duration("timeout")})
	if err != nil {
		return err
	}
	defer m.Close()
	is, err := m.WhoAmI(s.ctx)
	if err != nil {
		return err
	}
	name, err := identity.ParseName(is.GetName())
	if err != nil || name.Cell != cell || name.Role != identity.User {
		return cli.Errorf(cli.NotAllowed, "the masters take this certificate for that of %q, which is no user of cell %s", is.GetName(), cell)
	}
	return s.loggedIn(c.As(name), masters)
}

// loggedIn keeps who one is, and makes the cell the one that is meant where none is
// named.
func (s *session) loggedIn(c *identity.Credential, masters []string) error {
	path := client.UserConfigPath()
	config, err := client.ReadUserConfig(path)
	if err != nil {
		return err
	}
	cell := c.Name.Cell
	file := client.CellFile{Cell: cell, Masters: masters, Identity: filepath.Join(filepath.Dir(path), cell+".pem")}
	if err := identity.WriteCredential(file.Identity, c); err != nil {
		return err
	}
	if config.Cells == nil {
		config.Cells = make(map[string]client.CellFile)
	}
	config.Cells[cell] = file
	if config.Cell == "" {
		config.Cell = cell
	}
	if err := client.WriteUserConfig(path, config); err != nil {
		return err
	}
	s.say("you are %s of cell %s until %s", c.Name.Words(), cell, c.Expires().Local().Format(time.DateTime))
	s.progress("the cell is in %s; use it: borgcfg --cell %s status", path, cell)
	return nil
}

func whoami(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	is, err := m.WhoAmI(s.ctx)
	if err != nil {
		return err
	}
	expires := s.source.Current().Expires()
	if s.out.format == "name" {
		return s.out.names([]string{s.source.Name().ID})
	}
	if s.out.machine() {
		b, err := json.Marshal(struct {
			Name         string   `json:"name"`
			User         string   `json:"user"`
			Expires      string   `json:"expires"`
			Capabilities []string `json:"capabilities"`
			Admins       []string `json:"admins"`
		}{is.Name, s.source.Name().ID, expires.UTC().Format(time.RFC3339), append([]string{}, is.Capabilities...), is.Admins})
		if err != nil {
			return fmt.Errorf("print as JSON: %w", err)
		}
		return s.out.raw(b)
	}
	var t table
	t.add("user", s.source.Name().ID)
	t.add("cell", s.source.Name().Cell)
	t.add("capabilities", orNone(is.Capabilities))
	t.add("certificate", s.place.IdentityPath+", until "+expires.Local().Format(time.DateTime))
	t.add("who can grant", orNone(is.Admins))
	return t.write(s.out, "")
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

// canI asks the masters whether they would let one.
func canI(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	object, verb := "", s.args[0]
	if len(s.args) == 2 {
		object = s.args[1]
		if (verb == "up" || verb == "update") && isFile(object) {
			return s.canApply(object)
		}
		if object, err = s.objectOf(verb, object); err != nil {
			return err
		}
	}
	why, err := m.CanI(s.ctx, verb, object)
	var invalid *client.InvalidError
	if errors.As(err, &invalid) {
		e := cli.Errorf(cli.Usage, "can-i: %w", err)
		if near := nearVerb(verb); near != "" {
			return e.Hint("did you mean: borgcfg can-i %s?", near)
		}
		return e
	}
	if err != nil {
		return err
	}
	if err := s.answer(verb, object, why); err != nil {
		return err
	}
	if verb == "up" || verb == "update" {
		s.progress("quota and capabilities depend on what a file asks for: borgcfg can-i %s FILE", verb)
	}
	return nil
}

// objectOf is the whole name of what a verb is about. What the cell's own verbs are about is no
// job of anybody, but a machine, a user, or what follows the verb, and stays as it is.
func (s *session) objectOf(verb, text string) (string, error) {
	switch {
	case verbs.OfCell(verb), verbs.IsSubcommand(verb, text):
		return text, nil
	case verb == "file":
		user, name, err := s.file(text)
		return user + "/" + name, err
	case verb == "volume":
		o, err := s.volume(text)
		return fmt.Sprintf("%s/%s/%d/%s", o.GetUser(), o.GetName(), o.GetIndex(), o.GetVolume()), err
	}
	job, index, err := s.task(text)
	if err == nil && verb == "note" {
		return fmt.Sprintf("%s/%d", job, index), nil
	}
	if err == nil {
		return job.String(), nil
	}
	if job, err := s.job(text); err == nil {
		return job.String(), nil
	}
	return text, nil
}

// canApply asks whether the masters would take what a job file says.
func (s *session) canApply(file string) error {
	objects, err := s.evaluateAll([]string{file})
	if err != nil {
		return err
	}
	steps, err := s.plan(objects)
	if err != nil {
		return err
	}
	err = s.validate(steps, nil)
	var refused *client.RefusedError
	if errors.As(err, &refused) {
		return s.answer("up", file, err.Error())
	}
	if err == nil {
		return s.answer("up", file, "")
	}
	return err
}

// answer says yes, or no with exit code 8 and why.
func (s *session) answer(verb, object, why string) error {
	if s.out.machine() {
		err := s.out.value(struct {
			Verb   string `json:"verb"`
			Object string `json:"object"`
			Can    bool   `json:"can"`
			Why    string `json:"why"`
		}{verb, object, why == "", why})
		if err != nil {
			return err
		}
	} else if why == "" {
		s.say("yes")
	}
	if why != "" {
		return cli.Errorf(cli.NotAllowed, "no: %s", why)
	}
	return nil
}

// verbsOfAudit are the verbs of can-i for what the audit calls otherwise.
var verbsOfAudit = map[string]string{
	"submit": "up", "create": "up", "submit-job": "up", "submit-alloc-set": "up", "update-job": "update", "update-alloc-set": "update",
	"kill": "down", "kill-job": "down", "delete": "down", "kill-alloc-set": "down", "set-labels": "label", "read": "status",
}

// nearVerb is the verb of can-i that was probably meant; empty: none.
func nearVerb(verb string) string {
	if known := verbsOfAudit[verb]; known != "" && slices.Contains(verbs.All(), known) {
		return known
	}
	return cli.Nearest(verb, verbs.All())
}

// change makes a mutation of a user and tells of it.
func (s *session) change(op *borgpb.Op, format string, args ...any) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	if _, err := m.Mutate(s.ctx, s.op(op)); err != nil {
		return err
	}
	s.say(format, args...)
	return nil
}

// capabilityField is what a refusal is about that knows no such capability.
const capabilityField = "capability"

func capabilitiesHint() string {
	var all []string
	for _, c := range borgcell.Capabilities {
		all = append(all, string(c))
	}
	return "capabilities: " + strings.Join(all, ", ")
}

func grant(s *session) error {
	op := &borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: s.args[0], Capability: s.args[1]}}}
	h, err := s.holder(s.args[0])
	if err != nil {
		return err
	}
	return s.changeOf(h, op, "user %s: has the capability %s", s.args[0], s.args[1])
}

func revoke(s *session) error {
	op := &borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: s.args[0], Capability: s.args[1]}}}
	return s.change(op, "user %s: no longer has the capability %s", s.args[0], s.args[1])
}

// userRevoke names a time to come, which stands for the moment at which it is
// done, by whatever clock.
func userRevoke(s *session) error {
	at := time.Now().Add(24 * time.Hour).UnixNano()
	op := &borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: s.args[0], CertificatesWallNs: at}}}
	again := "borgcfg user add " + s.args[0]
	if s.isSelf(s.args[0]) {
		// Who is not let in can let nobody in.
		if again = s.wayBack(s.args[0]); !s.flag.Bool("yes") {
			return cli.Errorf(cli.Refused, "you are user %s: without certificates you are let in no more", s.args[0]).
				Hint("if that is meant: borgcfg user revoke --yes %s\nthe way back is then:\n%s", s.args[0], again)
		}
	}
	h, err := s.holder(s.args[0])
	if err != nil {
		return err
	}
	if !h.known && h.near != "" && !s.flag.Bool("yes") {
		return cli.Errorf(cli.NotFound, "the cell has nothing of user %s", h.user).
			Hint("did you mean %s?\nif %s was let in and has done nothing yet: borgcfg user revoke --yes %s", h.near, h.user, h.user)
	}
	return s.changeOf(h, op, "user %s: all certificates issued so far are worthless; let in again: %s", s.args[0], again)
}

// isSelf reports whether a user is the one who asks.
func (s *session) isSelf(user string) bool {
	_, err := s.master()
	return err == nil && s.source.Name().User() == user
}

func userAdd(s *session) error {
	return s.invite(identity.User, "borgcfg login TOKEN")
}

func machineInvite(s *session) error {
	return s.invite(identity.Borglet, "borglet serve --join TOKEN --name "+s.args[0]+" ...")
}

// invite prints a token and nothing else on standard output.
func (s *session) invite(role identity.Role, next string) error {
	if err := checkName(s.args[0], "cannot be a name: letters a-z, digits and dashes, at most 63, with a letter or digit at both ends"); err != nil {
		return err
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	token, err := m.Invite(s.ctx, string(role)+"/"+s.args[0], s.command(), s.flag.String("reason"))
	if err != nil {
		return err
	}
	s.say("%s", token.Text())
	s.progress("a secret: whoever has it becomes %s, once, until %s; with it: %s",
		token.Credential.Name.Becomes().Words(), token.Credential.Expires().Local().Format(time.DateTime), next)
	return nil
}

func userList(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	users, err := m.ListUsers(s.ctx)
	if err != nil {
		return err
	}
	if s.out.format == "name" {
		var names []string
		for _, u := range users {
			names = append(names, u.Name)
		}
		return s.out.names(names)
	}
	if s.out.machine() {
		return list(s.out, users)
	}
	var t table
	t.head("USER", "CAPABILITIES", "CERTIFICATES")
	for _, u := range users {
		revoked := "-"
		if u.RevokedWallNs != 0 {
			revoked = "revoked up to " + time.Unix(0, u.RevokedWallNs).Local().Format(time.DateTime)
		}
		t.add(u.Name, orNone(u.Capabilities), revoked)
	}
	return t.write(s.out, "")
}

package main

import (
	"fmt"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// maxSecretBytes is what the cell takes.
const maxSecretBytes = 64 << 10

func secretCommands(con *console) *ucli.Command {
	return group("secret", "what your tasks are given, and nobody is shown",
		command(con, "set", "have the cell keep a secret, or give it another value", "SECRET", 1, 2, secretSet, reasonFlag(),
			&ucli.StringFlag{Name: "from", Value: "-", Usage: "`FILE` that holds the value, to its last byte; -: standard input"}),
		command(con, "list", "list your secrets; no value is ever shown", "", 0, 0, secretList, outputFlag(),
			&ucli.BoolFlag{DisableDefaultText: true, Name: "all-users", Usage: "those of all users; for admins"}),
		command(con, "delete", "forget a secret that no job names any more", "SECRET", 1, 1, secretDelete, reasonFlag()),
		command(con, "rotate-key", "seal all secrets with a new key, and take the old one away; for admins", "", 0, 0, rotateKey, reasonFlag()),
	)
}

// secretName reads NAME or USER/NAME.
func (s *session) secretName(arg string) (user, name string, err error) {
	if user, name, ok := strings.Cut(arg, "/"); ok {
		return user, name, nil
	}
	user, err = s.user()
	return user, arg, err
}

// readValue reads a value, and never says any of it.
func (s *session) readValue(from string) ([]byte, error) {
	if from == "-" && s.inTerminal {
		return nil, cli.Errorf(cli.Usage, "what is typed here would be seen").Hint("borgcfg secret set NAME --from FILE, or pipe it in: ... | borgcfg secret set NAME")
	}
	value, err := s.read(from, input{"the value of a secret", maxSecretBytes, "a large thing is kept elsewhere, sealed with a key that is a secret"})
	if err != nil {
		return nil, err
	}
	if len(value) == 0 {
		return nil, cli.Errorf(cli.Usage, "the value is empty").Hint("borgcfg secret set NAME --from FILE")
	}
	return value, nil
}

func secretSet(s *session) error {
	if len(s.args) > 1 {
		return cli.Errorf(cli.Usage, "a value on the command line would be seen by others and kept by the shell").
			Hint("pipe it in: ... | borgcfg secret set %s --from -, or name a file: --from FILE", s.args[0])
	}
	user, name, err := s.secretName(s.args[0])
	if err != nil {
		return err
	}
	value, err := s.readValue(s.flag.String("from"))
	if err != nil {
		return err
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.SetSecret(s.ctx, &borgrpc.SetSecretRequest{
		User: user, Name: name, Value: value, Command: s.op(&borgpb.Op{}).Command, Reason: s.flag.String("reason"),
	})
	if err != nil {
		return err
	}
	s.say("secret %s/%s: version %d, %d bytes", user, name, resp.GetResult().GetVersion(), len(value))
	if resp.GetResult().GetVersion() > 1 {
		s.progress("tasks that run are given it within half an hour, and those that start at once")
	}
	return nil
}

func secretDelete(s *session) error {
	user, name, err := s.secretName(s.args[0])
	if err != nil {
		return err
	}
	op := &borgpb.Op{Op: &borgpb.Op_DeleteSecret{DeleteSecret: &borgpb.DeleteSecret{User: user, Name: name}}}
	return s.change(op, "secret %s/%s: deleted", user, name)
}

func secretList(s *session) error {
	user, err := s.user()
	if err != nil {
		return err
	}
	if s.flag.Bool("all-users") {
		user = ""
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	secrets, err := m.ListSecrets(s.ctx, user)
	if err != nil {
		return err
	}
	if s.out.format == "name" {
		var names []string
		for _, one := range secrets {
			names = append(names, one.User+"/"+one.Name)
		}
		return s.out.names(names)
	}
	if s.out.machine() {
		return list(s.out, secrets)
	}
	var t table
	t.head("SECRET", "VERSION", "SET", "KEY")
	for _, one := range secrets {
		t.add(one.User+"/"+one.Name, fmt.Sprint(one.Version), time.Unix(0, one.ChangedWallNs).Local().Format(time.DateTime), one.KeyId)
	}
	return t.write(s.out, "")
}

func rotateKey(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.RotateCellKey(s.ctx, &borgrpc.RotateCellKeyRequest{Command: s.op(&borgpb.Op{}).Command, Reason: s.flag.String("reason")})
	if err != nil {
		return err
	}
	s.say("cell key %s is in use; %d secrets were sealed anew", resp.KeyId, resp.Sealed)
	for _, id := range resp.Dropped {
		s.say("cell key %s was taken away: older checkpoints keep their secrets to themselves", id)
	}
	for _, who := range resp.Untold {
		s.progress("an old key may still be with %s; the next rotation takes it away", who)
	}
	return nil
}

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// maxFileBytes is what the cell takes.
const maxFileBytes = 256 << 10

func fileCommands(con *console) *ucli.Command {
	ifVersion := func(usage string) ucli.Flag { return &ucli.Uint64Flag{Name: "if-version", Usage: usage} }
	g := group("file", "small files that the cell keeps for you and your tasks",
		command(con, "ls", "list files: those below a name, or all", "[FILE]", 0, 1, fileList, outputFlag()),
		command(con, "get", "print a file, byte for byte", "FILE", 1, 1, fileGet, outputFlag(),
			&ucli.StringFlag{Name: "out", Usage: "write it to `PATH` instead"}, cli.ForceFlag()),
		command(con, "put", "write a file, whole", "FILE", 1, 1, filePut, reasonFlag(), outputFlag(),
			&ucli.StringFlag{Name: "from", Usage: "`PATH` of its content; -: standard input, which needs no flag where it is no terminal"},
			ifVersion("only if it has this `VERSION`; 0: only if it is not there")),
		command(con, "rm", "delete a file", "FILE", 1, 1, fileRemove, reasonFlag(), ifVersion("only if it has this `VERSION`")),
		command(con, "watch", "print which files there are, and then each change", "[FILE]", 0, 1, fileWatch, outputFlag()),
	)
	g.Description = "FILE is a name such as conf/leader among your own, or /USER/conf/leader among those of a user."
	return g
}

// file reads NAME, which is among those of one's own user, or /USER/NAME.
func (s *session) file(arg string) (user, name string, err error) {
	if rest, ok := strings.CutPrefix(arg, "/"); ok {
		user, name, _ = strings.Cut(rest, "/")
		if user == "" {
			return "", "", cli.Errorf(cli.Usage, "%q names no user", arg).Hint("a file is NAME, or /USER/NAME of another user")
		}
		return user, name, nil
	}
	user, err = s.user()
	return user, arg, err
}

// ifVersion is the version that a file must have; nil: any.
func (s *session) ifVersion() *uint64 {
	if !s.flag.IsSet("if-version") {
		return nil
	}
	return new(s.flag.Uint64("if-version"))
}

// input is what is read, and at most how much of it there may be.
type input struct {
	// Such as "the value".
	what     string
	maxBytes int
	// What to do with what is larger.
	hint string
}

// read reads a file, or what is piped in for "-". It says nothing of the content.
func (s *session) read(from string, i input) ([]byte, error) {
	in := s.stdin
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return nil, cli.Errorf(cli.Usage, "%w", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, int64(i.maxBytes)+1))
	if err != nil {
		return nil, cli.Errorf(cli.Failed, "read %s: %w", i.what, err)
	}
	if len(data) > i.maxBytes {
		return nil, cli.Errorf(cli.Refused, "%s: more than %d bytes, which is the most that there may be", i.what, i.maxBytes).Hint("%s", i.hint)
	}
	return data, nil
}

func filePut(s *session) error {
	user, name, err := s.file(s.args[0])
	if err != nil {
		return err
	}
	from := s.flag.String("from")
	hint := fmt.Sprintf("from a file: borgcfg file put %s --from PATH\nor pipe it in: ... | borgcfg file put %s", s.args[0], s.args[0])
	if from == "" && s.inTerminal {
		return cli.Errorf(cli.Usage, "it is not said what the file is to hold").Hint("%s", hint)
	}
	content, err := s.read(cmp.Or(from, "-"), input{"the content of a small file", maxFileBytes, "keep what is large elsewhere, and its name in the file"})
	if err != nil {
		return err
	}
	if from == "" && len(content) == 0 {
		return cli.Errorf(cli.Usage, "it is not said what the file is to hold: standard input is empty").
			Hint("%s\nif it is to be empty: borgcfg file put %s --from -", hint, s.args[0])
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	op := s.op(&borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: user, Name: name, Content: content, IfVersion: s.ifVersion()}}})
	res, err := m.Mutate(s.ctx, op)
	if err != nil {
		return s.conflict(err, user, name)
	}
	if s.out.machine() {
		return s.out.one(&borgrpc.FileStatus{User: user, Name: name, Version: res.GetVersion(), SizeBytes: uint64(len(content))})
	}
	s.say("file %s/%s: version %d, %d bytes", user, name, res.GetVersion(), len(content))
	return nil
}

// conflict says what to type after somebody else was first.
func (s *session) conflict(err error, user, name string) error {
	var refused *client.RefusedError
	if errors.As(err, &refused) && refused.Refusal.Kind == borgpb.RefusalKind_REFUSAL_KIND_CONFLICT {
		return cli.Errorf(cli.Conflict, "%w", err).Hint("read it again, with its version: borgcfg file ls %s", s.fileWord(user, name))
	}
	return err
}

// fileWord is a file as its owner would type it.
func (s *session) fileWord(user, name string) string {
	if own, err := s.user(); err == nil && own == user {
		return name
	}
	return "/" + user + "/" + name
}

func fileRemove(s *session) error {
	user, name, err := s.file(s.args[0])
	if err != nil {
		return err
	}
	op := &borgpb.Op{Op: &borgpb.Op_DeleteFile{DeleteFile: &borgpb.DeleteFile{User: user, Name: name, IfVersion: s.ifVersion()}}}
	return s.conflict(s.change(op, "file %s/%s: deleted", user, name), user, name)
}

func fileGet(s *session) error {
	user, name, err := s.file(s.args[0])
	if err != nil {
		return err
	}
	if to := s.flag.String("out"); to != "" {
		if err := cli.NewFile(to, s.flag.Bool("force")); err != nil {
			return err
		}
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.ReadFile(s.ctx, &borgrpc.ReadFileRequest{User: user, Name: name})
	var missing *client.NotFoundError
	if errors.As(err, &missing) {
		return cli.Errorf(cli.NotFound, "%w", err).Hint("see what there is: borgcfg file ls")
	}
	if err != nil {
		return err
	}
	if to := s.flag.String("out"); to != "" {
		if err := os.WriteFile(to, resp.Content, 0o666); err != nil {
			return cli.Errorf(cli.Failed, "--out: %w", err)
		}
		s.progress("file %s/%s: version %d, %d bytes", user, name, resp.File.GetVersion(), len(resp.Content))
		return nil
	}
	if s.out.machine() {
		return s.out.one(resp)
	}
	content := resp.Content
	if s.terminal {
		content = []byte(cli.VisibleLines(string(content)))
	}
	_, err = s.stdout.Write(content)
	return err
}

func fileList(s *session) error {
	user, prefix, err := s.filePrefix()
	if err != nil {
		return err
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	files, err := m.ListFiles(s.ctx, user, prefix)
	if err != nil {
		return err
	}
	if s.out.format == "name" {
		var names []string
		for _, f := range files {
			names = append(names, s.fileWord(f.User, f.Name))
		}
		return s.out.names(names)
	}
	if s.out.machine() {
		return list(s.out, files)
	}
	var t table
	t.head("FILE", "VERSION", "BYTES", "WRITTEN")
	for _, f := range files {
		t.add(s.fileWord(f.User, f.Name), f.Version, f.SizeBytes, wallText(f.ChangedWallNs))
	}
	return t.write(s.out, "")
}

// filePrefix reads whose files are meant, and below which name; "/USER" are all of
// a user.
func (s *session) filePrefix() (user, prefix string, err error) {
	if len(s.args) == 0 {
		user, err = s.user()
		return user, "", err
	}
	user, prefix, err = s.file(s.args[0])
	return user, strings.TrimSuffix(prefix, "/"), err
}

// fileWatch tells of changes until it is interrupted.
func fileWatch(s *session) error {
	user, prefix, err := s.filePrefix()
	if err != nil {
		return err
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	return m.WatchFiles(s.ctx, &borgrpc.WatchFilesRequest{User: user, Prefix: prefix}, func(state bool, changes []*borgrpc.FileChange) error {
		for _, one := range changes {
			if s.out.machine() {
				if err := s.out.one(one); err != nil {
					return err
				}
				continue
			}
			what := fmt.Sprintf("version %d, written %s", one.File.GetVersion(), wallText(one.File.GetChangedWallNs()))
			switch {
			case one.Deleted:
				what = "deleted"
			case state:
				what += ", is there"
			}
			s.say("%s  %s", s.fileWord(user, one.File.GetName()), what)
		}
		return nil
	})
}

// resolveName tells where tasks are.
func resolveName(s *session) error {
	req := &borgrpc.ResolveRequest{}
	job, index, err := s.task(s.args[0])
	if err == nil {
		req.OneTask, req.First = true, index
	} else if job, err = s.job(s.args[0]); err != nil {
		return err
	}
	req.User, req.Job = job.user, job.name
	m, err := s.master()
	if err != nil {
		return err
	}
	var all []*borgrpc.Endpoint
	for {
		page, err := m.Resolve(s.ctx, req)
		if err != nil {
			return err
		}
		all = append(all, page.Endpoints...)
		if page.Next <= req.First {
			break
		}
		req.First = page.Next
	}
	if s.out.machine() {
		return list(s.out, all)
	}
	var t table
	var names []string
	t.head("TASK", "ATTEMPT", "STATE", "MACHINE", "ADDRESS")
	for _, one := range all {
		state := stateCell(one.State)
		if one.State == borgpb.State_STATE_RUNNING && !one.Running {
			state = cell{"starting", waiting}
		}
		t.add(fmt.Sprintf("%s/%d", s.short(job.user, job.name), one.Index), one.Attempt, state, one.Machine, addresses(one))
		names = append(names, taskName(job.user, job.name, one.Index))
	}
	if s.out.format == "name" {
		return s.out.names(names)
	}
	return t.write(s.out, "")
}

// addresses are host and port of each port of a task by its name; of one without
// ports, the host.
func addresses(one *borgrpc.Endpoint) string {
	if len(one.Ports) == 0 {
		return one.Host
	}
	var all []string
	for name, port := range one.Ports {
		all = append(all, name+"="+net.JoinHostPort(one.Host, strconv.Itoa(int(port))))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgrpc"
)

func checkpointCommands(con *console) *ucli.Command {
	return group("checkpoint", "the whole cell as a file, as it is and as it was",
		command(con, "get", "write a checkpoint of the cell to a file: of now, or one that a master has kept", "FILE", 1, 1, checkpointGet,
			&ucli.Uint64Flag{Name: "index", Usage: "the newest that a master has kept of log index `N` or before"},
			&ucli.StringFlag{Name: "at", Usage: "the newest that a master has kept of `TIME` or before: 2h, 3d, or 2026-11-21T22:00:00Z"}, cli.ForceFlag()),
		command(con, "list", "list the checkpoints and the change logs that the masters have kept", "", 0, 0, checkpointList, outputFlag()))
}

// checkpointList tells what each master has kept.
func checkpointList(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	var answers []*borgrpc.ListCheckpointsResponse
	var silent []client.KeptBy
	for _, by := range m.ListCheckpoints(s.ctx) {
		if by.Err != nil {
			silent = append(silent, by)
		} else {
			answers = append(answers, by.Kept)
		}
	}
	if len(answers) == 0 && len(silent) > 0 {
		return silent[0].Err
	}
	for _, by := range silent {
		s.progress("master at %s: %v", by.Addr, by.Err)
	}
	if s.out.machine() {
		return list(s.out, answers)
	}
	var t, logs table
	t.head("MASTER", "EPOCH", "INDEX", "TIME", "AGE", "SIZE")
	logs.head("MASTER", "CHANGE LOG FROM", "TO", "SIZE", "WHAT IS MISSING BEFORE IT")
	for _, a := range answers {
		for _, k := range a.Checkpoints {
			t.add(a.Replica, k.Epoch, k.Index, time.Unix(0, k.WallTimeNs).UTC().Format(time.RFC3339), ago(s.now(), k.WallTimeNs), bytesText(int64(k.Bytes)))
		}
		for _, l := range a.Logs {
			logs.add(a.Replica, l.FirstIndex, l.LastIndex, bytesText(int64(l.Bytes)), l.Gap)
		}
		switch {
		case a.Off:
			s.progress("master %d keeps no past: it was started with --no-archive", a.Replica)
		case a.Failing != "":
			s.progress("master %d keeps nothing at this time: %s", a.Replica, a.Failing)
		}
	}
	if s.out.format == "name" {
		var names []string
		for _, a := range answers {
			for _, k := range a.Checkpoints {
				names = append(names, fmt.Sprint(k.Index))
			}
		}
		return s.out.names(names)
	}
	if err := t.write(s.out, ""); err != nil {
		return err
	}
	s.say("")
	return logs.write(s.out, "")
}

// checkpointGet fetches one.
func checkpointGet(s *session) (err error) {
	req := &borgrpc.SaveCheckpointRequest{Index: s.flag.Uint64("index")}
	if req.WallTimeNs, err = s.moment("at"); err != nil {
		return err
	}
	if s.flag.IsSet("index") && (req.Index == 0 || req.WallTimeNs != 0) {
		return cli.Errorf(cli.Usage, "want one of --index, from 1, and --at")
	}
	path := s.args[0]
	if err := cli.NewFile(path, s.flag.Bool("force")); err != nil {
		return err
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	addr := ""
	if req.Index != 0 || req.WallTimeNs != 0 {
		if addr, err = s.keeper(m, req); err != nil {
			return err
		}
	}
	// Finished files only: it is written beside and renamed.
	partial := path + ".partial"
	f, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return cli.Errorf(cli.Failed, "write the checkpoint: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(partial)
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	index, bytes, err := s.receive(m, addr, req, w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err2 := f.Close(); err == nil {
		err = err2
	}
	if err == nil {
		err = os.Rename(partial, path)
	}
	if err != nil {
		return err
	}
	s.say("%s: the cell at index %d, %s", path, index, bytesText(bytes))
	return nil
}

// keeper is the address of the master that has kept the checkpoint that is nearest.
func (s *session) keeper(m *client.Client, req *borgrpc.SaveCheckpointRequest) (addr string, err error) {
	var best, oldest *borgrpc.KeptCheckpoint
	var silent []string
	var of uint64
	for _, by := range m.ListCheckpoints(s.ctx) {
		if by.Err != nil {
			err = by.Err
			silent = append(silent, fmt.Sprintf("the master at %s said nothing: %v", by.Addr, by.Err))
			continue
		}
		for _, k := range by.Kept.Checkpoints {
			if oldest == nil || k.WallTimeNs < oldest.WallTimeNs {
				oldest, of = k, by.Kept.Replica
			}
			early := (req.Index == 0 || k.Index <= req.Index) && (req.WallTimeNs == 0 || k.WallTimeNs <= req.WallTimeNs)
			if early && (best == nil || k.Epoch > best.Epoch || k.Epoch == best.Epoch && k.Index > best.Index) {
				best, addr = k, by.Addr
			}
		}
	}
	switch {
	case best != nil:
		return addr, nil
	case oldest == nil && err != nil:
		return "", err
	}
	text := "no master has kept a checkpoint of that time or before"
	if oldest != nil {
		text += fmt.Sprintf("; the oldest is of index %d, %s, kept by master %d", oldest.Index, time.Unix(0, oldest.WallTimeNs).UTC().Format(time.RFC3339), of)
	}
	return "", cli.Errorf(cli.NotFound, "%s", strings.Join(append([]string{text}, silent...), "\n  ")).Hint("see: borgcfg checkpoint list")
}

// receive writes what comes to w, and tells how far it is.
func (s *session) receive(m *client.Client, addr string, req *borgrpc.SaveCheckpointRequest, w *bufio.Writer) (index uint64, bytes int64, err error) {
	show := s.errTerminal && !s.flag.Bool("quiet")
	var about int64
	var said time.Time
	err = m.SaveCheckpoint(s.ctx, addr, req, func(resp *borgrpc.SaveCheckpointResponse) error {
		about = max(about, int64(resp.AboutBytes))
		bytes += int64(len(resp.Chunk))
		index = resp.Index
		if now := time.Now(); show && now.Sub(said) >= 100*time.Millisecond {
			said = now
			text := bytesText(bytes)
			if about > 0 {
				text += " of about " + bytesText(max(about, bytes))
			}
			fmt.Fprintf(s.stderr, "\r\x1b[K%s", text)
		}
		_, err := w.Write(resp.Chunk)
		return err
	})
	if show && bytes > 0 {
		fmt.Fprint(s.stderr, "\r\x1b[K")
	}
	if err == nil && index == 0 {
		err = errors.New("get a checkpoint: the master ended before it was whole")
	}
	return index, bytes, err
}

package main

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/cell"
	"borg/borgmaster/cellkey"
	"borg/borgmaster/replica"
	"borg/checkpoint"
	"borg/cli"
	"borg/identity"
	"borg/proto/borgpb"
)

func restoreCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "restore",
		Usage:     "make the directory of a replica whose cell is a checkpoint, when all replicas were lost",
		UsageText: "borgmaster checkpoint restore --from FILE --replica N --members 1=HOST:PORT,2=HOST:PORT,... --authority FILE [--epoch N] [--yes]",
		Description: "The cell goes on from the checkpoint in a new epoch. Run it once for each member, with the\n" +
			"same file, the same members and the same epoch: replicas that began with different cells refuse each\n" +
			"other. What masters of an earlier epoch say is refused by machines and by other masters. Nothing\n" +
			"that runs is stopped: see docs/restore.md.",
		Flags: []ucli.Flag{
			&ucli.StringFlag{Name: "from", Usage: "checkpoint `FILE`"},
			&ucli.Uint64Flag{Name: "replica", Usage: "`NUMBER` of this replica, from 1"},
			&ucli.StringFlag{Name: "members", Usage: "number and address of `EACH` replica, 1=HOST:PORT,2=HOST:PORT,..."},
			&ucli.StringFlag{Name: "authority", Usage: "`FILE` authority.pem of any replica that the cell had, or a copy of it; cell-keys.json should lie beside it"},
			&ucli.Uint64Flag{Name: "epoch", Usage: "latest epoch `N` that the cell is known to have had (default: that of the checkpoint)"},
			&ucli.BoolFlag{Name: "older", Usage: "although the checkpoint is of an earlier epoch than that"},
			&ucli.StringFlag{Name: "dir", Usage: "`DIRECTORY` of the replica (default: " + cli.StateDir("CELL", "N") + ")"},
			&ucli.BoolFlag{Name: "yes", Usage: "do it, do not only say what would be done"},
		},
		Action: restoreReplica,
	}
}

// restoreReplica says what would be restored, and does it with --yes.
func restoreReplica(ctx *ucli.Context) error {
	if ctx.NArg() > 0 || ctx.String("from") == "" || ctx.Uint64("replica") == 0 {
		return cli.Errorf(cli.Usage, "want --from FILE, --replica NUMBER and --members, and no arguments").Hint("see: borgmaster checkpoint restore --help")
	}
	members, err := parseMembers(ctx.String("members"))
	if err != nil {
		return err
	}
	number := ctx.Uint64("replica")
	if !slices.ContainsFunc(members, func(m *borgpb.Member) bool { return m.Id == number }) {
		return cli.Errorf(cli.Usage, "--replica %d is not among --members %s", number, ctx.String("members"))
	}
	c, h, err := readCell(ctx.String("from"))
	if err != nil {
		return err
	}
	last, err := lastEpoch(ctx, h)
	if err != nil {
		return err
	}
	if err := c.Restore(last + 1); err != nil {
		return cli.Errorf(cli.Invalid, "restore %s: %w", ctx.String("from"), err)
	}
	id := &borgpb.ReplicaIdentity{CellName: h.CellName, CellId: h.CellId, Epoch: c.Epoch(), Replica: number, Members: members}
	if c.NumAdmins() == 0 {
		// As of a new cell: it was saved before its first admin was logged.
		id.Admin = localUser()
	}
	dir := replicaDir(ctx, id.CellName, id.Replica)
	if err := checkEmpty(dir); err != nil {
		return err
	}
	authority, keys, err := papersForRestore(ctx, h.CellName)
	if err != nil {
		return err
	}
	printRestore(ctx, h, c, dir, ctx.String("members"))
	if len(keys) == 0 {
		fmt.Fprintf(ctx.App.ErrWriter, "borgmaster: there is no %s beside the authority: secrets stay sealed, and tasks that need one do not start\n  put it into %s, mode 0600, before the replica is started\n", keysName, dir)
	}
	if !ctx.Bool("yes") {
		fmt.Fprintf(ctx.App.ErrWriter, "nothing was done; to do it, add: --yes\n")
		return nil
	}
	if err := identity.WriteSecret(authorityFile(dir), authority); err != nil {
		return cli.Errorf(cli.Failed, "keep the cell's authority: %w", err)
	}
	if len(keys) > 0 {
		if err := identity.WriteSecret(keysFile(dir), keys); err != nil {
			return cli.Errorf(cli.Failed, "keep the cell keys: %w", err)
		}
	}
	if err := replica.Restore(checkpoint.Config{Dir: dir}, id, h, c); err != nil {
		return cli.Errorf(cli.Failed, "restore replica %d: %w", number, err)
	}
	fmt.Fprintf(ctx.App.Writer, "replica %d of cell %s (%s), epoch %d, is in %s\n", number, id.CellName, id.CellId, id.Epoch, dir)
	fmt.Fprintf(ctx.App.ErrWriter, "when all members are restored, start each: borgmaster serve --dir %s\nthen see: borgcfg restore status\n", dir)
	return nil
}

// readCell reads a checkpoint file whole.
func readCell(path string) (*cell.Cell, *borgpb.CheckpointHeader, error) {
	f, err := openCheckpoint(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	c, h, err := replica.ReadCheckpoint(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return nil, nil, cli.Errorf(cli.Invalid, "%s: %w", path, err).Hint("take another one: borgmaster checkpoint list DIRECTORY")
	}
	return c, h, nil
}

// lastEpoch is the one that the new epoch comes after.
func lastEpoch(ctx *ucli.Context, h *borgpb.CheckpointHeader) (uint64, error) {
	known := ctx.Uint64("epoch")
	switch {
	case known == 0:
		return h.Epoch, nil
	case known < h.Epoch:
		return 0, cli.Errorf(cli.Conflict, "the checkpoint is of epoch %d, which is later than --epoch %d", h.Epoch, known).Hint("leave --epoch out")
	case known > h.Epoch && !ctx.Bool("older"):
		return 0, cli.Errorf(cli.Conflict, "the checkpoint is of epoch %d and the cell has had epoch %d: all that was done since the restore in between would be lost", h.Epoch, known).
			Hint("look for a checkpoint of epoch %d, or add --older", known)
	}
	return known, nil
}

// papersForRestore are the authority and, if they are there, the keys of secrets. A
// new authority would be believed by no machine.
func papersForRestore(ctx *ucli.Context, cellName string) (authority, keys []byte, err error) {
	path := ctx.String("authority")
	if path == "" {
		return nil, nil, cli.Errorf(cli.Usage, "restore needs --authority FILE: the machines believe no other one").
			Hint("authority.pem lies in the directory of each replica and, if you followed docs/restore.md, with your backups")
	}
	if authority, err = authorityForInit(cellName, path); err != nil {
		return nil, nil, err
	}
	keys, err = keysBeside(path)
	if errors.Is(err, os.ErrNotExist) {
		return authority, nil, nil
	}
	if err != nil {
		return nil, nil, cli.Errorf(cli.Invalid, "the cell keys: %w", err)
	}
	if _, err := cellkey.Decode(keys, nil); err != nil {
		return nil, nil, cli.Errorf(cli.Invalid, "%s beside %s: %w", keysName, path, err)
	}
	return authority, keys, nil
}

func printRestore(ctx *ucli.Context, h *borgpb.CheckpointHeader, c *cell.Cell, dir, members string) {
	var running, pending, jobs uint32
	for j := range c.Jobs() {
		p, r, _ := j.Counts()
		running, pending = running+r, pending+p
		if p+r > 0 {
			jobs++
		}
	}
	wall, d := time.Unix(0, h.WallTimeNs), c.Digest()
	printRows(ctx, [][2]string{
		{"cell", fmt.Sprintf("%s (%s)", h.CellName, h.CellId)},
		{"index", fmt.Sprintf("%d, term %d", h.Index, h.Term)},
		{"time", fmt.Sprintf("%s, %s ago", wall.UTC().Format(time.RFC3339), time.Since(wall).Round(time.Second))},
		{"jobs", fmt.Sprint(jobs)},
		{"tasks", fmt.Sprintf("%d running, %d pending", running, pending)},
		{"machines", fmt.Sprint(c.NumMachines())},
		{"epoch", fmt.Sprintf("%d, was %d", c.Epoch(), h.Epoch)},
		{"members", members},
		{"digest", hex.EncodeToString(d[:])},
		{"directory", dir},
	})
}

package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/checkpoint"
	"borg/cli"
	"borg/identity"
	"borg/proto/borgrpc"
)

func checkpointCommand() *ucli.Command {
	return &ucli.Command{
		Name:  "checkpoint",
		Usage: "write and read checkpoint files",
		Subcommands: []*ucli.Command{
			{Name: "save", Usage: "write a checkpoint: from the directory of a replica that does not run, or from one that does", ArgsUsage: "DIRECTORY FILE | --from HOST:PORT FILE",
				Flags: []ucli.Flag{
					&ucli.StringFlag{Name: "from", Usage: "`ADDRESS` of a replica that runs"},
					&ucli.StringFlag{Name: "cell", Usage: "with --from: `CELL` whose file names the certificate to show (default: as borgcfg finds it)"},
					identityFlag(), cli.ForceFlag(),
				},
				Action: saveCheckpoint},
			{Name: "list", Usage: "list what a directory has kept of the past: that of a replica, or one with copies of its files", ArgsUsage: "DIRECTORY", Action: listArchive},
			{Name: "inspect", Usage: "say what is in a checkpoint file, or in a segment of the change log", ArgsUsage: "FILE", Action: inspectCheckpoint},
			restoreCommand(),
			editCommand(),
			{Name: "verify", Usage: "say whether a file is whole, or every file of a directory and nothing between them missing", ArgsUsage: "FILE|DIRECTORY", Action: verifyCheckpoint},
		},
	}
}

func saveCheckpoint(ctx *ucli.Context) error {
	source, path := ctx.String("from"), ctx.Args().First()
	save := func(c context.Context, source string, w io.Writer) (string, string, error) {
		who, err := sourceFor(ctx)
		if err != nil {
			return "", "", err
		}
		return saveFromReplica(c, who, source, w)
	}
	if source == "" {
		source, path, save = ctx.Args().First(), ctx.Args().Get(1), saveFromDirectory
	}
	if path == "" || ctx.NArg() > 2 || (ctx.NArg() == 2) == ctx.IsSet("from") {
		return cli.Errorf(cli.Usage, "want the directory or the address of a replica, and a file to write").
			Hint("borgmaster checkpoint save DIRECTORY FILE\nborgmaster checkpoint save --from HOST:PORT FILE")
	}
	if err := cli.NewFile(path, ctx.Bool("force")); err != nil {
		return err
	}
	var what, warning string
	err := writeWhole(path, func(w io.Writer) (err error) {
		what, warning, err = save(ctx.Context, source, w)
		return err
	})
	if err != nil {
		var e *cli.Error
		if errors.As(err, &e) {
			return e
		}
		return cli.Errorf(cli.Failed, "save a checkpoint of %s: %w", source, err)
	}
	fmt.Fprintf(ctx.App.Writer, "%s: %s\n", path, what)
	if warning != "" {
		fmt.Fprintf(ctx.App.ErrWriter, "borgmaster: %s\n", warning)
	}
	return nil
}

// saveFromDirectory says so when the replica was killed: what it did last is in
// its log alone, and only the replica itself can tell what of that holds.
func saveFromDirectory(ctx context.Context, dir string, w io.Writer) (what, warning string, err error) {
	header, later, err := checkpoint.Save(ctx, dir, w)
	if err != nil {
		return "", "", err
	}
	const next = "start the replica, stop it with SIGTERM, and save again"
	// Only a replica that has flushed nothing since init has no digest.
	if len(header.GetDigest()) == 0 {
		return "", "", cli.Errorf(cli.Failed, "%s holds no records of the cell yet, only %d entries of its log", dir, later).Hint(next)
	}
	if later > 0 {
		warning = fmt.Sprintf("the replica was killed: the last %d entries of its log are not in the checkpoint\n  to have them: %s", later, next)
	}
	return fmt.Sprintf("cell %s at index %d", header.GetCellName(), header.GetIndex()), warning, nil
}

// saveFromReplica takes down what a running replica sends. Only its last
// message says that this is all.
func saveFromReplica(ctx context.Context, who *identity.Source, addr string, w io.Writer) (what, warning string, err error) {
	conn, err := dialMaster(who, addr)
	if err != nil {
		return "", "", err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	doing := "save a checkpoint from " + addr
	stream, err := borgrpc.NewCheckpointServiceClient(conn).SaveCheckpoint(ctx, &borgrpc.SaveCheckpointRequest{})
	if err != nil {
		return "", "", masterError(doing, err)
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return "", "", fmt.Errorf("the replica at %s ended before the checkpoint was whole", addr)
		}
		if err != nil {
			return "", "", masterError(doing, err)
		}
		if _, err := w.Write(resp.GetChunk()); err != nil {
			return "", "", err
		}
		if resp.GetIndex() > 0 {
			return fmt.Sprintf("the cell at index %d", resp.GetIndex()), "", nil
		}
	}
}

func inspectCheckpoint(ctx *ucli.Context) error {
	return readCheckpoint(ctx, "inspect", func(f *os.File) error {
		info, err := checkpoint.Inspect(f)
		if errors.Is(err, checkpoint.ErrNotCheckpoint) {
			return inspectSegment(ctx, f, err)
		}
		if err != nil {
			return err
		}
		h := info.Header
		printRows(ctx, [][2]string{
			{"cell", h.GetCellName()},
			{"cell id", h.GetCellId()},
			{"epoch", fmt.Sprint(h.GetEpoch())},
			{"index", fmt.Sprint(h.GetIndex())},
			{"term", fmt.Sprint(h.GetTerm())},
			{"wall time", time.Unix(0, h.GetWallTimeNs()).UTC().Format(time.RFC3339)},
			{"cell time", time.Duration(h.GetCellTimeNs()).String()},
			{"digest", hex.EncodeToString(h.GetDigest())},
			{"voters", fmt.Sprint(h.GetVoters())},
			{"learners", fmt.Sprint(h.GetLearners())},
			{"formats", fmt.Sprintf("cell %d, file %d", h.GetCellFormat(), h.GetFileFormat())},
			{"records", fmt.Sprintf("%d, %d bytes in %d chunks", info.Records, info.RecordBytes, info.Chunks)},
			{"file", fmt.Sprintf("%d bytes", info.FileBytes)},
		})
		return nil
	})
}

func printRows(ctx *ucli.Context, rows [][2]string) {
	for _, row := range rows {
		fmt.Fprintf(ctx.App.Writer, "%-10s %s\n", row[0], row[1])
	}
}

func verifyCheckpoint(ctx *ucli.Context) error {
	if info, err := os.Stat(ctx.Args().First()); err == nil && info.IsDir() && ctx.NArg() == 1 {
		return verifyArchive(ctx)
	}
	return readCheckpoint(ctx, "verify", func(f *os.File) error {
		err := checkpoint.Verify(f)
		if errors.Is(err, checkpoint.ErrNotCheckpoint) {
			err = verifySegment(ctx, f, err)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(ctx.App.Writer, "%s: ok\n", f.Name())
		return nil
	})
}

func readCheckpoint(ctx *ucli.Context, verb string, read func(*os.File) error) error {
	if ctx.NArg() != 1 {
		return cli.Errorf(cli.Usage, "want one checkpoint file").Hint("borgmaster checkpoint %s FILE", verb)
	}
	f, err := os.Open(ctx.Args().First())
	if errors.Is(err, os.ErrNotExist) {
		return cli.Errorf(cli.NotFound, "there is no file %s", ctx.Args().First())
	}
	if err != nil {
		return cli.Errorf(cli.Failed, "%s: %w", verb, err)
	}
	defer f.Close()
	if err := read(f); err != nil {
		return cli.Errorf(cli.Invalid, "%s %s: %w", verb, f.Name(), err)
	}
	return nil
}

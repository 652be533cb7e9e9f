package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	ucli "github.com/urfave/cli/v2"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/cli"
	"borg/proto/borgpb"
)

// maxLineBytes bounds a record as a line of JSON.
const maxLineBytes = 32 << 20

func editCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "edit",
		Usage:     "repair a checkpoint by hand: write its records as lines of JSON, and make another checkpoint of such lines",
		UsageText: "borgmaster checkpoint edit --dump RECORDS CHECKPOINT\nborgmaster checkpoint edit --load RECORDS --to NEW CHECKPOINT",
		Description: "The checkpoint itself is never changed. The new one is that of the same moment, with the records\n" +
			"of the file in any order; it is written only if they make a cell that keeps all its rules. What a record\n" +
			"means is in docs/format-cell-records.md. See docs/restore.md.",
		Flags: []ucli.Flag{
			&ucli.StringFlag{Name: "dump", Usage: "write the records to `FILE`; - is standard output"},
			cli.ForceFlag(),
			&ucli.StringFlag{Name: "load", Usage: "read the records from `FILE`; - is standard input"},
			&ucli.StringFlag{Name: "to", Usage: "with --load: the `FILE` of the new checkpoint"},
		},
		Action: func(ctx *ucli.Context) error {
			dump, load := ctx.String("dump"), ctx.String("load")
			if ctx.NArg() != 1 || (dump == "") == (load == "") || (load == "") != (ctx.String("to") == "") {
				return cli.Errorf(cli.Usage, "want a checkpoint file, and --dump FILE or --load FILE --to FILE").Hint("see: borgmaster checkpoint edit --help")
			}
			if dump != "" {
				return dumpCheckpoint(ctx, ctx.Args().First(), dump)
			}
			return loadRecords(ctx, ctx.Args().First(), load, ctx.String("to"))
		},
	}
}

// dumpCheckpoint needs no cell: a checkpoint that makes none is what it is for.
func dumpCheckpoint(ctx *ucli.Context, path, to string) error {
	f, err := openCheckpoint(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := checkpoint.NewReader(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return cli.Errorf(cli.Invalid, "%s: %w", path, err)
	}
	n := 0
	write := func(w io.Writer) error {
		for key, value := range r.Records() {
			line, err := cell.PlainRecord(key, value)
			if err != nil {
				return fmt.Errorf("record %x: %w", key, err)
			}
			n++
			if _, err := w.Write(append(line, '\n')); err != nil {
				return err
			}
		}
		return r.Err()
	}
	if to == "-" {
		err = write(ctx.App.Writer)
	} else {
		if err := cli.NewFile(to, ctx.Bool("force")); err != nil {
			return err
		}
		err = writeWhole(to, write)
	}
	if err != nil {
		return cli.Errorf(cli.Invalid, "dump %s: %w", path, err)
	}
	fmt.Fprintf(ctx.App.ErrWriter, "%d records of cell %s at index %d\nafter the change: borgmaster checkpoint edit --load %s --to NEW %s\n", n, r.Header().GetCellName(), r.Header().GetIndex(), to, path)
	return nil
}

func openCheckpoint(path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, cli.Errorf(cli.NotFound, "there is no file %s", path)
	}
	if err != nil {
		return nil, cli.Errorf(cli.Failed, "open the checkpoint: %w", err)
	}
	return f, nil
}

// keyed is a record and the line that it came from.
type keyed struct {
	key, value []byte
	line       int
}

// loadRecords makes a checkpoint of the same moment, of other records.
func loadRecords(ctx *ucli.Context, path, from, to string) error {
	f, err := openCheckpoint(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := checkpoint.NewReader(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return cli.Errorf(cli.Invalid, "%s: %w", path, err)
	}
	if err := checkNew(path, to); err != nil {
		return err
	}
	in := io.Reader(os.Stdin)
	if from != "-" {
		lines, err := os.Open(from)
		if err != nil {
			return cli.Errorf(cli.NotFound, "open the records: %w", err)
		}
		defer lines.Close()
		in = lines
	}
	records, err := readRecords(from, in)
	if err != nil {
		return err
	}
	header, err := headerOf(r.Header(), from, records)
	if err != nil {
		return err
	}
	err = writeWhole(to, func(w io.Writer) error {
		cw, err := checkpoint.NewWriter(w, header)
		if err != nil {
			return err
		}
		for _, k := range records {
			if err := cw.Add(k.key, k.value); err != nil {
				return err
			}
		}
		return cw.Close()
	})
	if err != nil {
		return cli.Errorf(cli.Failed, "write %s: %w", to, err)
	}
	fmt.Fprintf(ctx.App.Writer, "%s: %d records, cell %s at index %d, digest %x\n", to, len(records), header.CellName, header.Index, header.Digest)
	return nil
}

// checkNew refuses to write over anything.
func checkNew(path, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return cli.Errorf(cli.Conflict, "%s is there already; %s is never changed, and nothing is written over", to, path).Hint("give another --to")
	}
	return nil
}

func readRecords(name string, in io.Reader) ([]keyed, error) {
	var records []keyed
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxLineBytes)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		key, value, err := cell.ReadPlainRecord(lines.Bytes())
		if err != nil {
			return nil, cli.Errorf(cli.Invalid, "%s:%d: %w", name, n, err)
		}
		records = append(records, keyed{key, value, n})
	}
	if err := lines.Err(); err != nil {
		return nil, cli.Errorf(cli.Failed, "read %s: %w", name, err)
	}
	slices.SortStableFunc(records, func(a, b keyed) int { return bytes.Compare(a.key, b.key) })
	for i := 1; i < len(records); i++ {
		if bytes.Equal(records[i-1].key, records[i].key) {
			return nil, cli.Errorf(cli.Invalid, "%s:%d: the record of line %d is there again", name, records[i].line, records[i-1].line)
		}
	}
	return records, nil
}

// headerOf makes the header of records that make a cell of the same name and moment.
func headerOf(was *borgpb.CheckpointHeader, name string, records []keyed) (*borgpb.CheckpointHeader, error) {
	at := 0
	c, err := cell.Load(func(yield func(k, v []byte) bool) {
		for _, r := range records {
			at = r.line
			if !yield(r.key, r.value) {
				return
			}
		}
		at = 0
	})
	switch {
	case err != nil && at > 0:
		return nil, cli.Errorf(cli.Invalid, "%s:%d: %w", name, at, err)
	case err != nil:
		return nil, cli.Errorf(cli.Invalid, "%s: %w", name, err)
	case c.ID() != was.GetCellId() || c.Epoch() != was.GetEpoch() || c.Index() != was.GetIndex() || c.Term() != was.GetTerm():
		return nil, cli.Errorf(cli.Invalid, "%s: the head is of cell %s at epoch %d, index %d, term %d, and the checkpoint of %s at %d, %d, %d: that cannot be changed",
			name, c.ID(), c.Epoch(), c.Index(), c.Term(), was.GetCellId(), was.GetEpoch(), was.GetIndex(), was.GetTerm()).
			Hint("a new epoch is begun with borgmaster checkpoint restore")
	}
	h := proto.CloneOf(was)
	d := c.Digest()
	h.Digest, h.CellFormat = d[:], c.Format()
	h.CellTimeNs, h.WallTimeNs = c.TimeNs(), c.WallNs()
	return h, nil
}

// writeWhole writes a file that is there only when it is whole: beside, and renamed.
func writeWhole(path string, write func(io.Writer) error) (err error) {
	partial := path + ".partial"
	f, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(partial)
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	if err = write(w); err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(partial, path)
}

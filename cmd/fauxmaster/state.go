package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"borg/cli"
	"borg/fauxmaster/sim"
)

// stateHeader is the first line of a state file: what its seeds were run with.
// Results of another program or configuration are results of something else.
type stateHeader struct {
	Format int
	// Commit, for people, and the hash of the program.
	Build, Program string
	Duration, Aim  string
	// Of a sweep, whose results are those of one.
	Seed uint64 `json:",omitempty"`
}

// state keeps what each seed came to in a file: a header, then a line of JSON
// for each. A run without a file keeps nothing.
type state struct {
	path    string
	file    *os.File
	results map[uint64]simulated
}

func openState(path string, cfg sim.Config) (*state, error) {
	s := &state{path: path, results: map[uint64]simulated{}}
	if path == "" {
		return s, nil
	}
	program, err := hashOfProgram()
	if err != nil {
		return nil, cli.Errorf(cli.Failed, "read this program: %w", err)
	}
	want := stateHeader{Format: 1, Build: cli.Build(), Program: program, Duration: time.Duration(cfg.DurationNs).String(), Aim: cfg.Aim}
	if cfg.Aim == sim.SweepAim {
		want.Seed = cfg.Seed
	}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, cli.Errorf(cli.Failed, "go on with %s: %w", path, err)
	}
	whole, err := s.read(data, want)
	if err != nil {
		return nil, err
	}
	if s.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return nil, cli.Errorf(cli.Failed, "keep results in %s: %w", path, err)
	}
	// A line that was cut short is written again.
	if err = s.file.Truncate(int64(whole)); err == nil {
		_, err = s.file.Seek(int64(whole), 0)
	}
	if err == nil && whole == 0 {
		err = s.write(want)
	}
	if err != nil {
		s.Close()
		return nil, cli.Errorf(cli.Failed, "keep results in %s: %w", path, err)
	}
	return s, nil
}

// read takes in what a file has, and returns how many bytes of it are whole
// lines.
func (s *state) read(data []byte, want stateHeader) (whole int, err error) {
	whole = bytes.LastIndexByte(data, '\n') + 1
	for i, line := range bytes.Split(bytes.TrimSuffix(data[:whole], []byte("\n")), []byte("\n")) {
		if whole == 0 {
			return 0, nil
		}
		var r simulated
		if i > 0 {
			if err := json.Unmarshal(line, &r); err != nil {
				return 0, cli.Errorf(cli.Invalid, "line %d of %s cannot be read: %w", i+1, s.path, err).Hint("delete the file, or give another one")
			}
			s.results[r.Seed] = r
			continue
		}
		var h stateHeader
		if err := json.Unmarshal(line, &h); err != nil || h.Format != want.Format {
			return 0, cli.Errorf(cli.Invalid, "%s is not a file of results of this command", s.path).Hint("give another one")
		}
		if h.Program != want.Program {
			return 0, cli.Errorf(cli.Conflict, "%s has results of another build (%s; this is %s)", s.path, h.Build, want.Build).
				Hint("give another file, or delete it; to go on with it, build what made it")
		}
		if h != want {
			return 0, cli.Errorf(cli.Conflict, "%s has results of another configuration: %s", s.path, h.flags()).
				Hint("give another file, or run with %s", h.flags())
		}
	}
	return whole, nil
}

func (h stateHeader) flags() string {
	s := "--duration " + h.Duration
	if h.Aim == sim.SweepAim {
		s += fmt.Sprintf(" --disk-sweep --seed %d", h.Seed)
	} else if h.Aim != "" {
		s += " --aim " + h.Aim
	}
	return s
}

// add keeps what a seed came to.
func (s *state) add(r simulated) error {
	if s.file == nil {
		return nil
	}
	if err := s.write(r); err != nil {
		return fmt.Errorf("keep the result of seed %d: %w", r.Seed, err)
	}
	return nil
}

func (s *state) write(v any) error { return json.NewEncoder(s.file).Encode(v) }

func (s *state) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

func hashOfProgram() (string, error) {
	data, err := os.ReadFile(thisProgram)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8]), nil
}

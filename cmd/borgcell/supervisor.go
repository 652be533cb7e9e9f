package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// supervisor runs the processes of a cell, restarts those that die, and keeps
// a record of them on disk for whoever has to clean up when we were killed.
type supervisor struct {
	log        *slog.Logger
	recordPath string

	mu    sync.Mutex
	procs map[string]*process // guarded by mu
	// Owners of the processes.
	owners sync.WaitGroup
	// Guards the record file.
	recordMu sync.Mutex
}

// record is the file processes.json.
type record struct {
	Processes []recordedProcess `json:"processes"`
}

type recordedProcess struct {
	Name string `json:"name"`
	processID
}

func newSupervisor(log *slog.Logger, recordPath string) *supervisor {
	return &supervisor{log: log, recordPath: recordPath, procs: make(map[string]*process)}
}

// add makes a process known without starting it. One of the same name is
// returned as it is.
func (s *supervisor) add(spec processSpec) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.procs[spec.Name]; p != nil {
		p.become(spec)
		return p
	}
	p := newProcess(spec, s.log, s.writeRecord)
	s.procs[spec.Name] = p
	s.owners.Go(p.run)
	return p
}

// get returns the process of that name, or nil.
func (s *supervisor) get(name string) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.procs[name]
}

// all returns the processes in the order of their names.
func (s *supervisor) all() []*process {
	s.mu.Lock()
	defer s.mu.Unlock()
	procs := make([]*process, 0, len(s.procs))
	for _, p := range s.procs {
		procs = append(procs, p)
	}
	slices.SortFunc(procs, func(a, b *process) int { return strings.Compare(a.spec.Name, b.spec.Name) })
	return procs
}

// stopAll stops the given processes at the same time and returns the names of
// those that had to be killed.
func (s *supervisor) stopAll(ctx context.Context, procs []*process, grace time.Duration) []string {
	var wg sync.WaitGroup
	killed := make([]bool, len(procs))
	for i, p := range procs {
		wg.Go(func() { killed[i] = p.stop(ctx, grace) })
	}
	wg.Wait()
	var names []string
	for i, p := range procs {
		if killed[i] {
			names = append(names, p.spec.Name)
		}
	}
	return names
}

// close ends the supervisor after everything was stopped.
func (s *supervisor) close() {
	for _, p := range s.all() {
		p.close()
	}
	s.owners.Wait()
}

// writeRecord writes what runs to disk. A failure is logged and not returned:
// the processes run all the same, and a sweep finds them by their environment
// too.
func (s *supervisor) writeRecord() {
	s.recordMu.Lock()
	defer s.recordMu.Unlock()
	var r record
	for _, p := range s.all() {
		if in := p.running(); in != nil {
			r.Processes = append(r.Processes, recordedProcess{Name: p.spec.Name, processID: in.id})
		}
	}
	if err := writeJSON(s.recordPath, r); err != nil {
		s.log.Error("record of processes not written", "err", err)
	}
}

// readRecord reads what an earlier run left; no file is no process.
func readRecord(path string) (record, error) {
	var r record
	err := readJSON(path, &r)
	if os.IsNotExist(err) {
		return record{}, nil
	}
	return r, err
}

// writeJSON replaces a file as a whole.
func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(append(b, '\n'))
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// wholeLines drops the first line when it is cut, and white space at the end.
func wholeLines(s string, cut bool) string {
	if cut {
		if _, rest, ok := strings.Cut(s, "\n"); ok {
			s = rest
		}
	}
	return strings.TrimSpace(s)
}

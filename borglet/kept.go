package borglet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"borg/borglet/beneath"
)

const (
	// How much output of forgotten copies is kept. Beyond it goes the oldest of the user of
	// whom most is kept.
	keptCopiesMax = 1000
	keptBytesMax  = 1 << 30
)

// recordFiles say what was to run and how it ended. They are kept with the output.
var recordFiles = []string{"spec.json", "intent", "exit.json"}

// keptOutput is what copies wrote that were forgotten: their end is in the
// log, so that the master need not hear of them again, but people still want to
// read why. It is a directory for each copy, with the files of outputFiles and
// recordFiles.
type keptOutput struct {
	dir string

	mu sync.Mutex
	// Oldest first. Guarded by mu.
	copies []keptCopy
	// Sum over copies. Guarded by mu.
	bytes int64
	// users are the sums over the copies of each. Guarded by mu.
	users map[string]keptSum
	// dropped counts what went before its time, to make room. Guarded by mu.
	dropped int64
}

// keptSum is what is kept of one user.
type keptSum struct {
	copies int
	bytes  int64
}

type keptCopy struct {
	name string
	// user is empty where the record does not say whose copy it was.
	user  string
	bytes int64
	since time.Time
}

// outputFiles lists the files of a copy's output: pieces of its streams, their times,
// and the streams last, since by them is told where its output is.
func outputFiles(dir string) ([]string, error) {
	names, err := fileNames(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, name := range names {
		if _, _, ok := parsePiece(name); ok || name == timesFile {
			files = append(files, name)
		}
	}
	slices.Sort(files)
	for _, name := range []string{stderrFile, stdoutFile} {
		if slices.Contains(names, name) {
			files = append(files, name)
		}
	}
	return files, nil
}

// openKept opens or makes the directory of kept output.
func openKept(dir string) (*keptOutput, error) {
	k := &keptOutput{dir: dir, users: map[string]keptSum{}}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("open kept output: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open kept output: %w", err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, fmt.Errorf("open kept output: %w", err)
		}
		k.add(keptCopy{name: e.Name(), user: userOf(filepath.Join(dir, e.Name())), bytes: outputBytes(filepath.Join(dir, e.Name())), since: info.ModTime()})
	}
	slices.SortStableFunc(k.copies, func(a, b keptCopy) int { return a.since.Compare(b.since) })
	return k, k.trim()
}

// state is for people: the sum of what is kept, and how much had to make room.
func (k *keptOutput) state() (bytes, dropped int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.bytes, k.dropped
}

// path is where the output of a copy is, if it is kept.
func (k *keptOutput) path(id ID) string { return filepath.Join(k.dir, id.String()) }

// take moves the output of a copy out of its directory.
func (k *keptOutput) take(id ID, taskDir string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	files, err := outputFiles(taskDir)
	if err != nil {
		return fmt.Errorf("keep output of copy %s: %w", id, err)
	}
	// Times alone tell nothing.
	if len(files) == 0 || slices.Equal(files, []string{timesFile}) {
		return nil
	}
	k.drop(id.String())
	if err := os.MkdirAll(k.path(id), 0o711); err != nil {
		return fmt.Errorf("keep output of copy %s: %w", id, err)
	}
	for _, name := range files {
		if err := os.Rename(filepath.Join(taskDir, name), filepath.Join(k.path(id), name)); err != nil {
			return fmt.Errorf("keep output of copy %s: %w", id, err)
		}
	}
	if err := k.linkRecords(id, taskDir); err != nil {
		return err
	}
	k.add(keptCopy{name: id.String(), user: userOf(k.path(id)), bytes: outputBytes(k.path(id)), since: time.Now()})
	return k.trim()
}

// linkRecords has the record of a copy in both places: without it the copy's own directory
// would be one that nobody can read.
func (k *keptOutput) linkRecords(id ID, taskDir string) error {
	for _, name := range recordFiles {
		to := filepath.Join(k.path(id), name)
		err := os.Remove(to)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = os.Link(filepath.Join(taskDir, name), to)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("keep record of copy %s: %w", id, err)
		}
	}
	return nil
}

// add counts a copy in as the newest.
func (k *keptOutput) add(c keptCopy) {
	k.copies = append(k.copies, c)
	k.count(c, 1)
}

// count adds a copy to the sums, or takes it out of them.
func (k *keptOutput) count(c keptCopy, sign int) {
	k.bytes += int64(sign) * c.bytes
	of := k.users[c.user]
	of.copies += sign
	of.bytes += int64(sign) * c.bytes
	if k.users[c.user] = of; of.copies == 0 {
		delete(k.users, c.user)
	}
}

// userOf says whose copy it was whose record is in a directory.
func userOf(dir string) string {
	var d struct {
		User string `json:"user"`
	}
	text, err := beneath.ReadFile(dir, "spec.json")
	if err != nil || json.Unmarshal(text, &d) != nil {
		return ""
	}
	return d.User
}

// drop no longer counts a copy, whose place another take will fill.
func (k *keptOutput) drop(name string) {
	at := slices.IndexFunc(k.copies, func(c keptCopy) bool { return c.name == name })
	if at >= 0 {
		k.count(k.copies[at], -1)
		k.copies = slices.Delete(k.copies, at, at+1)
	}
}

// trim removes output until the rest is within bounds, each time the oldest of the user of
// whom most is kept: what one user writes costs another nothing that is within his share.
func (k *keptOutput) trim() error {
	for len(k.copies) > keptCopiesMax || k.bytes > keptBytesMax {
		most := k.most(k.bytes > keptBytesMax)
		at := slices.IndexFunc(k.copies, func(c keptCopy) bool { return c.user == most })
		if err := k.remove(at); err != nil {
			return err
		}
		k.dropped++
	}
	return nil
}

// most is the user of whom most is kept, by bytes or by the number of copies.
func (k *keptOutput) most(byBytes bool) (user string) {
	for _, u := range slices.Sorted(maps.Keys(k.users)) {
		was, of := k.users[user], k.users[u]
		if byBytes && of.bytes > was.bytes || !byBytes && of.copies > was.copies {
			user = u
		}
	}
	return user
}

// expire removes what was taken before a time.
func (k *keptOutput) expire(before time.Time) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(k.copies) > 0 && k.copies[0].since.Before(before) {
		if err := k.remove(0); err != nil {
			return err
		}
	}
	return nil
}

func (k *keptOutput) remove(at int) error {
	name := k.copies[at].name
	if err := os.RemoveAll(filepath.Join(k.dir, name)); err != nil {
		return fmt.Errorf("remove kept output: %w", err)
	}
	k.drop(name)
	return nil
}

// outputBytes is the room that the files of a directory take on disk; the
// oldest part of a long log is a hole.
func outputBytes(dir string) int64 {
	// What cannot be listed takes nothing that could be removed.
	names, _ := outputFiles(dir)
	var bytes int64
	for _, name := range slices.Concat(names, recordFiles) {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			bytes += s.Blocks * 512
		}
	}
	return bytes
}

// outputDir is the directory that holds the output of a copy: its own, or the one
// where it is kept after it was forgotten.
func (s *Store) outputDir(id ID) (string, error) {
	own, kept := s.TaskDir(id), s.kept.path(id)
	_, err := os.Lstat(own)
	if err == nil {
		if _, err := os.Lstat(filepath.Join(own, stdoutFile)); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return own, nil
		}
	}
	if _, err := os.Lstat(kept); err == nil {
		return kept, nil
	}
	// A copy that has not written yet has a directory all the same.
	return own, err
}

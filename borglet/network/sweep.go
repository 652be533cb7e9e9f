package network

import (
	"errors"
	"log/slog"
	"os"
)

// Sweep removes all networks of a borglet that runs no more, and says how many there
// were.
func Sweep(dir, runDir string) (int, error) {
	s := newStore(Config{Dir: dir, RunDir: runDir, Log: slog.New(slog.DiscardHandler)})
	if _, err := os.Stat(s.dir()); errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	keys, err := s.Keys()
	if err != nil {
		return 0, err
	}
	if err := s.prepare(keys); err != nil {
		return 0, err
	}
	for i, key := range keys {
		if err := s.Remove(key); err != nil {
			return i, err
		}
	}
	return len(keys), nil
}

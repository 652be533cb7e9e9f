package door_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/proto/door"
)

// bareTooMany makes an error of "too many" without saying whether it helps to wait.
var bareTooMany = regexp.MustCompile(`status\.(Error|Errorf|New)\(codes\.ResourceExhausted`)

// bareAllowed are the files that may, and why.
var bareAllowed = map[string]string{
	"proto/door/overload.go": "it makes the two errors that others use",
	"borglet/server.go":      "a borglet is asked by masters alone, which turn it into a failed precondition",
}

// TestEachTooManySaysWhatHelps: each refusal of a call because there are too many is a TooMuch,
// after which a client waits, or a FullHere, after which it asks another replica.
func TestEachTooManySaysWhatHelps(t *testing.T) {
	root, found := filepath.Join("..", ".."), map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !bareTooMany.Match(text) {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if found[rel] = true; bareAllowed[rel] == "" {
			t.Errorf("%s makes an error of ResourceExhausted by itself; use door.TooMuch or door.FullHere", rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for rel := range bareAllowed {
		if !found[rel] {
			t.Errorf("%s is excused for nothing", rel)
		}
	}
	for _, at := range []struct {
		err   error
		retry time.Duration
	}{{door.FullHere("%d are here", 7), 0}, {door.TooMuch("too many", time.Second), time.Second}} {
		if status.Code(at.err) != codes.ResourceExhausted || door.RetryAfter(at.err) != at.retry {
			t.Errorf("%v: retry after %v, want %v", at.err, door.RetryAfter(at.err), at.retry)
		}
	}
}

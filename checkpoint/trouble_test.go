package checkpoint

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestTrouble: what fails again and again waits for longer each time, and is told seldom.
func TestTrouble(t *testing.T) {
	var log bytes.Buffer
	now, slept := time.Unix(1_000, 0), []time.Duration(nil)
	tr := newTrouble(slog.New(slog.NewTextHandler(&log, nil)), func(d time.Duration) { slept = append(slept, d) })
	tr.now = func() time.Time { return now }
	for range 10 {
		tr.heard(errors.New("no space left on device"))
		now = now.Add(100 * time.Millisecond)
	}
	if first, last := slept[0], slept[9]; first != time.Millisecond || last != 100*time.Millisecond {
		t.Errorf("it waits %v", slept)
	}
	if n := strings.Count(log.String(), "no space left"); n != 1 {
		t.Errorf("it is told %d times within a second:\n%s", n, log.String())
	}
	if now = now.Add(20 * time.Second); tr.note(errors.New("again")) != time.Millisecond {
		t.Error("after it was well it waits as long as before")
	}
	if !strings.Contains(log.String(), "err=again others=9") {
		t.Errorf("it is not told how often it failed:\n%s", log.String())
	}
}

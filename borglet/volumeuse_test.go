package borglet

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// TestVolumeUse: what volumes keep is told once for each time that it is measured, also of
// those in which nobody works; of one that cannot be measured nothing is told, and the page
// does not say that it is empty.
func TestVolumeUse(t *testing.T) {
	keeps := map[string]int64{"alice.db.0.data": 5 << 20, "alice.db.1.data": 0}
	agent, err := New(Config{
		Name: "m1", Dir: t.TempDir(), Runtime: NewFake(), Log: slog.New(slog.DiscardHandler),
		Spec: &borgpb.MachineSpec{Addr: "m1:7101"}, Backoff: Backoff{FirstNs: 1, BaseNs: 1, MaxNs: 1, HealthyNs: 1},
		TreeBytes: func(dir string) (int64, error) {
			bytes, ok := keeps[filepath.Base(filepath.Dir(dir))]
			if !ok {
				return 9, errors.New("too deep")
			}
			return bytes, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for index := range uint32(3) {
		d := wanted(ID{"1-5-0", index, 1})
		d.User, d.Job = "alice", "db"
		d.Spec.Volumes = []*borgpb.Volume{{Name: "data", Path: "/data", DiskBytes: 8 << 20}}
		if err := agent.store.volumes.before(d); err != nil {
			t.Fatal(err)
		}
	}
	measure := func() {
		t.Helper()
		done := make(chan Event, 1)
		go func() { done <- <-agent.results }()
		agent.measureDisk(t.Context(), &diskMeter{}, nil)
		<-done
	}
	told := func() (text string) {
		for _, v := range agent.volumeUse.take() {
			text += fmt.Sprintf("%s %d; ", volumeIDOf(v.Name).words(), v.DiskBytes)
		}
		return text
	}
	if got := told(); got != "" {
		t.Errorf("before it was measured %q is told", got)
	}
	measure()
	if got, want := told(), "alice/db/0/data 5242880; alice/db/1/data 0; "; got != want {
		t.Errorf("told is %q, want %q", got, want)
	}
	if got := told(); got != "" {
		t.Errorf("%q is told once more", got)
	}
	keeps["alice.db.1.data"] = 7
	measure()
	if got, want := told(), "alice/db/0/data 5242880; alice/db/1/data 7; "; got != want {
		t.Errorf("told is %q, want %q", got, want)
	}
	var page strings.Builder
	for _, row := range agent.volumeSection().Rows {
		page.WriteString(fmt.Sprintf("%s %s of %s; ", row[0].Text, row[1].Text, row[2].Text))
	}
	if want := "alice/db/0/data 5.0 MiB of 8.0 MiB; alice/db/1/data 7 B of 8.0 MiB; alice/db/2/data – of 8.0 MiB; "; page.String() != want {
		t.Errorf("the page says %q, want %q", page.String(), want)
	}
}

package checkpoint

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// at is a wall time: so long after a midnight.
func at(d time.Duration) int64 { return int64(20_000*24*time.Hour) + int64(d) }

func TestDue(t *testing.T) {
	r := Retention{Every: 10 * time.Minute, EveryEntries: 1000}
	last := func(index uint64, at int64) Held {
		return Held{Name: "c", Checkpoint: true, Epoch: 1, Index: index, WallNs: at}
	}
	for _, tc := range []struct {
		name  string
		r     Retention
		last  Held
		index uint64
		now   time.Duration
		phase time.Duration
		want  bool
	}{
		{"there is none", r, Held{}, 5, 0, 0, true},
		{"that of an epoch before", r, Held{Name: "c", Epoch: 0, Index: 900, WallNs: at(0)}, 5, 0, 0, true},
		{"nothing was done since", r, last(5, at(0)), 5, time.Hour, 0, false},
		{"too early", r, last(5, at(0)), 6, 9 * time.Minute, 0, false},
		{"time", r, last(5, at(0)), 6, 10 * time.Minute, 0, true},
		{"the moments do not move with the last one", r, last(5, at(9*time.Minute)), 6, 10 * time.Minute, 0, true},
		{"another replica's moment", r, last(5, at(9*time.Minute)), 6, 10 * time.Minute, 4 * time.Minute, false},
		{"its own", r, last(5, at(9*time.Minute)), 6, 14 * time.Minute, 4 * time.Minute, true},
		{"made in this period of a state from before", r, Held{Name: "c", Epoch: 1, Index: 5, WallNs: at(9 * time.Minute), MadeNs: at(10 * time.Minute)}, 6, 11 * time.Minute, 0, false},
		{"entries", r, last(5, at(0)), 1005, time.Minute, 0, true},
		{"one entry less", r, last(5, at(0)), 1004, time.Minute, 0, false},
		{"not by time", Retention{EveryEntries: 1000}, last(5, at(0)), 1004, 100 * time.Hour, 0, false},
		{"not by entries", Retention{Every: time.Hour}, last(5, at(0)), 1_000_000, time.Minute, 0, false},
		{"the clock went back", r, last(5, at(time.Hour)), 6, 0, 0, false},
	} {
		if got := tc.r.Due(tc.last, 1, tc.index, at(tc.now), tc.phase); got != tc.want {
			t.Errorf("%s: due %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestPhases holds that replicas have moments of their own within a period.
func TestPhases(t *testing.T) {
	r := Retention{Every: 10 * time.Minute}
	var got []time.Duration
	for place := range 5 {
		got = append(got, r.Phase(place, 5))
	}
	if want := []time.Duration{0, 2 * time.Minute, 4 * time.Minute, 6 * time.Minute, 8 * time.Minute}; !slices.Equal(got, want) {
		t.Errorf("phases %v, want %v", got, want)
	}
	if r.Phase(0, 0) != 0 {
		t.Error("a replica that knows of no members has a phase")
	}
}

// TestDrop reads archives in short: c10@1h is a checkpoint of index 10 whose time
// is an hour ago, l10@1h a segment from entry 10 on whose last entry is so old, l10!
// the one being written; each has 10 bytes.
func TestDrop(t *testing.T) {
	day := 24 * time.Hour
	r := Retention{All: time.Hour, Hourly: day, Daily: 7 * day, Log: 2 * day, MaxBytes: 1000}
	small := r
	small.MaxBytes = 40
	for _, tc := range []struct {
		name string
		r    Retention
		have string
		lack int64
		want string
	}{
		{"nothing", r, "", 0, ""},
		{"all of the last hour", r, "c10@50m c20@40m c30@0m", 0, ""},
		// It is 12:30.
		{"the first of each hour", r, "c10@3h25m c20@3h10m c30@2h20m c40@10m", 0, "c20@3h10m"},
		{"the first of each day", r, "c10@60h c20@50h c30@30h c40@10m", 0, "c20@50h"},
		{"older than a week", r, "c10@170h c20@150h c30@0m", 0, "c10@170h"},
		{"the newest stays", r, "c10@1000h", 0, ""},
		{"old log", r, "c10@60h l5@49h l10@47h l20! c30@0m", 0, "l5@49h"},
		{"log that leads from no checkpoint", r, "l2@3h l10@3h c25@2h l20@2h l30@1h l40!", 0, "l2@3h l10@3h"},
		{"log without any checkpoint", r, "l2@50h l10@3h l20!", 0, ""},
		{"log after the newest checkpoint, however old", r, "c10@100h l10@90h l20@80h l30!", 0, ""},
		{"too many bytes", small, "c10@50m l10@50m l20@40m c30@30m l30@20m l40!", 0, "l10@50m c10@50m"},
		{"too many bytes, and nothing that may go", small, "c10@50m l10@50m l20@40m l30@30m l40@20m l50!", 0, ""},
		{"the disk is full", r, "c10@50m l10@50m l20@40m c30@30m l30@20m l40!", 25, "l10@50m c10@50m l20@40m"},
		{"the segment that the newest checkpoint lies in stays", r, "c10@50m l10@50m l20@40m c25@30m l30@20m l40!", 100, "l10@50m c10@50m"},
	} {
		now := at(12*time.Hour + 30*time.Minute)
		got := strings.Join(tc.r.Drop(archiveOf(t, tc.have, now), now, tc.lack), " ")
		if got != tc.want {
			t.Errorf("%s: of %q goes %q, want %q", tc.name, tc.have, got, tc.want)
		}
	}
}

func archiveOf(t *testing.T, text string, now int64) []Held {
	t.Helper()
	var held []Held
	for _, word := range strings.Fields(text) {
		h := Held{Name: word, Checkpoint: word[0] == 'c', Epoch: 1, Bytes: 10}
		index, age, _ := strings.Cut(word[1:], "@")
		if h.Writing = strings.HasSuffix(word, "!"); h.Writing {
			index, age = strings.TrimSuffix(index, "!"), "0s"
		}
		d, err := time.ParseDuration(age)
		if _, err2 := fmt.Sscan(index, &h.Index); err != nil || err2 != nil {
			t.Fatalf("%q: %v, %v", word, err, err2)
		}
		h.WallNs = now - int64(d)
		held = append(held, h)
	}
	return held
}

// TestDropKeepsWhatLeadsOn drops again and again from an archive that grows: the
// newest checkpoint and the log after it stay, what is left of the log has no hole,
// and the bounds hold.
func TestDropKeepsWhatLeadsOn(t *testing.T) {
	day := 24 * time.Hour
	r := Retention{Every: 10 * time.Minute, All: time.Hour, Hourly: day, Daily: 7 * day, Log: 3 * day, MaxBytes: 8000}
	var held []Held
	index := uint64(2)
	for now := at(0); now < at(10*day); now += int64(10 * time.Minute) {
		for i := range held {
			held[i].Writing = false
		}
		held = append(held,
			Held{Name: fmt.Sprint("c", index), Checkpoint: true, Epoch: 1, Index: index, WallNs: now, Bytes: 30},
			Held{Name: fmt.Sprint("l", index), Epoch: 1, Index: index + 1, WallNs: now + int64(10*time.Minute), Bytes: 20, Writing: true})
		drop := r.Drop(held, now, 0)
		held = slices.DeleteFunc(held, func(h Held) bool { return slices.Contains(drop, h.Name) })
		next, checkpoints, total := uint64(0), 0, int64(0)
		for _, h := range held {
			total += h.Bytes
			switch {
			case h.Checkpoint:
				checkpoints++
			case next != 0 && h.Index != next:
				t.Fatalf("after %v the change log has a hole before entry %d", time.Duration(now-at(0)), h.Index)
			default:
				next = h.Index + 100
			}
		}
		newest := held[len(held)-2]
		if !newest.Checkpoint || newest.Index != index || next != index+101 || total > r.MaxBytes || checkpoints > 7+24+8 {
			t.Fatalf("after %v: %d checkpoints, %d bytes, the log up to %d; the last files are %v", time.Duration(now-at(0)), checkpoints, total, next-1, held[len(held)-2:])
		}
		index += 100
	}
	if len(held) < 100 {
		t.Errorf("%d files are kept at the end, which is too few to show anything", len(held))
	}
}

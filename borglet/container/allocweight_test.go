//go:build linux && cgo

package container

import (
	"os"
	"path/filepath"
	"testing"

	"borg/borglet"
)

// TestAllocWeight: an alloc weighs as the most urgent of what is in it, in both versions.
func TestAllocWeight(t *testing.T) {
	id := func(n uint32) borglet.ID { return borglet.ID{JobUID: "1-1-0", Index: n, Attempt: 1} }
	for _, v := range []struct{ file, controller, urgent, patient string }{
		{"cpu.shares", "cpu", "2048", "128"},
		{"cpu.weight", "", "174", "21"},
	} {
		t.Run(v.file, func(t *testing.T) {
			dir := tree(t, map[string]string{"pool/" + v.file: "100", "other/" + v.file: "100"})
			w := newAllocWeights(func(alloc string) paths {
				p := paths{v.controller: filepath.Join(dir, alloc)}
				if v.controller != "" {
					p["memory"] = p[v.controller]
				}
				return p
			})
			copyIn := func(n uint32, alloc string, batch bool) *borglet.Launch {
				return &borglet.Launch{ID: id(n), Alloc: alloc, Limits: borglet.Limits{CPUMilli: 100, Batch: batch}, AllocLimits: borglet.Limits{CPUMilli: 2000}}
			}
			check := func(when string, err error, pool, other string) {
				t.Helper()
				for alloc, want := range map[string]string{"pool": pool, "other": other} {
					text, readErr := os.ReadFile(filepath.Join(dir, alloc, v.file))
					if err != nil || readErr != nil || string(text) != want {
						t.Errorf("%s: %s of %s is %q, want %q (%v, %v)", when, v.file, alloc, text, want, err, readErr)
					}
				}
			}
			patient := copyIn(1, "pool", true)
			w.join(patient)
			if !patient.AllocLimits.Batch {
				t.Error("batch alone: its alloc is made with full weight")
			}
			check("batch alone", w.weigh(id(1)), v.patient, "100")
			urgent := copyIn(2, "pool", false)
			w.join(urgent)
			if urgent.AllocLimits.Batch {
				t.Error("beside one that is urgent: its alloc is made with little weight")
			}
			// Who made the cgroup before it knew of the other is corrected by either.
			check("an urgent one came", w.weigh(id(1)), v.urgent, "100")
			w.join(copyIn(3, "other", true))
			w.join(&borglet.Launch{ID: id(4)})
			check("another alloc, and a copy in none", w.settle(), v.urgent, v.patient)
			check("one in no alloc goes", w.leave(id(4)), v.urgent, v.patient)
			w.join(copyIn(2, "pool", true))
			check("its class changed", w.weigh(id(2)), v.patient, v.patient)
			w.join(copyIn(2, "pool", false))
			check("and again", w.weigh(id(2)), v.urgent, v.patient)
			check("it went", w.leave(id(2)), v.patient, v.patient)
			check("the last went", w.leave(id(1)), v.patient, v.patient)
			if err := os.RemoveAll(filepath.Join(dir, "other")); err != nil {
				t.Fatal(err)
			}
			if err := w.weigh(id(3)); err != nil {
				t.Errorf("the cgroup is not there yet: %v", err)
			}
		})
	}
}

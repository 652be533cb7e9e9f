package duty

import (
	"slices"
	"testing"
)

// TestSilentMachines: a machine is told as silent after some seconds and misses, and not
// when it is down already.
func TestSilentMachines(t *testing.T) {
	d := &Core{missing: map[string]*watched{}}
	for _, m := range []*watched{
		{name: "long", up: true, missed: 3, silentSinceNs: 1e9},
		{name: "a moment", up: true, missed: 3, silentSinceNs: 9e9},
		{name: "once", up: true, missed: 1, silentSinceNs: 1e9},
		{name: "down", missed: 9, silentSinceNs: 1e9},
		{name: "also long", up: true, missed: 2, silentSinceNs: 7e9},
	} {
		d.missing[m.name] = m
	}
	if got, want := d.Silent(10e9), []string{"also long", "long"}; !slices.Equal(got, want) {
		t.Errorf("%q are silent, want %q", got, want)
	}
}

package figures

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func TestMergeKeepsOtherFigures(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench.json")
	for _, f := range []Figure{{Name: "b", Value: 1}, {Name: "a", Value: 2}, {Name: "b", Value: 3}} {
		if err := Merge(path, []Figure{f}); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []Figure
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0] != (Figure{Name: "a", Value: 2}) || got[1] != (Figure{Name: "b", Value: 3}) {
		t.Errorf("merged figures = %+v, want a=2 b=3", got)
	}
}

func TestUnits(t *testing.T) {
	for name, want := range map[string]string{
		"master.reads.per_s": "1/s", "master.flood.capacity_per_s": "1/s", "master.state_1m.bytes": "B", "master.state_1m.heap_bytes": "B",
		"master.steady10k.leader_inbound_bytes_per_s": "B/s", "master.steady10k.leader_inbound_percent_of_full": "%",
		"master.transfer.median_ms": "ms", "master.coverage10k.seconds": "s", "master.elect10k.coverage_seconds": "s", "master.reads.served_by": "",
	} {
		if got := New(name, 1).Unit; got != want {
			t.Errorf("the unit of %s is %q, want %q", name, got, want)
		}
	}
}

package sockets

import (
	"slices"
	"strings"
	"testing"
)

// TestPrograms reads what kernels wrote: with packs of machine code, and with memory for each
// program.
func TestPrograms(t *testing.T) {
	for name, text := range map[string]string{
		"packs": `0x00000000ca527785-0x00000000628a81af    8192 bpf_prog_alloc_no_stats+0x39/0x230 pages=1 vmalloc N0=1
0x00000000475d1e1c-0x00000000ccd5628d   16384 bpf_prog_realloc+0x62/0xf0 pages=3 vmalloc N0=3
0x00000000ae0c41f5-0x00000000a0b1a5ad   12288 bpf_prog_pack_alloc+0x1c4/0x2a0 pages=8 vmalloc N0=8
0x00000000155d1e1c-0x00000000ccd5628d 8192 unpurged vm_area
0x00000000233c8ca2-0x00000000d94c3ac4    8192 bpf_map_area_alloc+0x39/0x90 pages=512 vmalloc N0=1
0x00000000233c8ca2-0x00000000d94c3ac4   20480 kernel_clone+0x9e/0x460 pages=4 vmalloc N0=4
`,
		"each": `0x0000000000000000-0x0000000000000000    8192 bpf_prog_alloc_no_stats+0x50/0x180 pages=1 vmalloc
0x0000000000000000-0x0000000000000000   16384 bpf_prog_clone_create+0x30/0x80 pages=3 vmalloc
0x0000000000000000-0x0000000000000000   12288 bpf_jit_alloc_exec+0x30/0x40 pages=2 vmalloc
0x0000000000000000-0x0000000000000000   28672 bpf_jit_binary_alloc+0x30/0x40 pages=6 vmalloc
`,
	} {
		p := Programs{PageBytes: 4096}
		for line := range strings.Lines(text) {
			p.Add(line)
		}
		if p.Count() != 2 || p.Bytes() != 8*4096 || p.Average(1) != 4*4096 || p.Average(9) != 8*4096 || p.Least(1) != 2*4096 || p.Least(2) != 8*4096 {
			t.Errorf("%s: %d programs of %d bytes; the smallest %d, the average %d", name, p.Count(), p.Bytes(), p.Least(1), p.Average(1))
		}
	}
	var none Programs
	if none.Average(1) != 0 || none.Least(1) != 0 {
		t.Error("no programs take memory")
	}
}

// TestCountFilters: what a child has of its parent counts once.
func TestCountFilters(t *testing.T) {
	process := func(id, parent int, threads ...int64) Process {
		return Process{ID: id, Parent: parent, Leader: threads[0], Threads: threads}
	}
	forked := []Process{process(10, 1, 1), process(11, 10, 3)}
	for id := range 200 {
		forked = append(forked, process(100+id, 11, 3))
	}
	for _, test := range []struct {
		name            string
		task            []Process
		certain, hidden int64
	}{
		{"nothing", nil, 0, 0},
		{"only that of the container", []Process{process(10, 1, 1), process(11, 10, 1, 1, 1)}, 1, 0},
		{"two filters and 200 children", forked, 3, 400},
		{"each child its own", []Process{process(10, 1, 1), process(11, 10, 1), process(12, 11, 8), process(13, 11, 8)}, 15, 0},
		{"each thread its own", []Process{process(10, 1, 1), process(11, 10, 1, 8, 8, 8)}, 22, 0},
		{"the parent after its children", []Process{process(10, 1, 1), process(11, 10, 8), process(12, 11, 8), process(13, 11, 8)}, 8, 14},
	} {
		if certain, hidden := CountFilters(test.task); certain != test.certain || hidden != test.hidden {
			t.Errorf("%s: %d and %d, want %d and %d", test.name, certain, hidden, test.certain, test.hidden)
		}
	}
}

// TestFiltersOver: production does not end for filters of others, nor for what is only likely.
// One task at a time ends for what is hidden.
func TestFiltersOver(t *testing.T) {
	machine := Use{Filters: 800, LikelyFilters: 800, HiddenFilters: 800}
	prod := func(id string, held Use) Holder[string] {
		return Holder[string]{ID: id, Priority: 200, IsProduction: true, Held: held}
	}
	for _, test := range []struct {
		name  string
		tasks []Holder[string]
		want  []string
	}{
		{"certainly too much", []Holder[string]{prod("a", Use{Filters: 101})}, []string{"a"}},
		{"likely too much", []Holder[string]{prod("a", Use{Filters: 1, LikelyFilters: 700}), {ID: "b", Held: Use{LikelyFilters: 101}}, {ID: "c", Held: Use{LikelyFilters: 100}}}, []string{"b"}},
		{"production together", []Holder[string]{
			prod("a", Use{Filters: 100}), prod("b", Use{Filters: 100}), prod("c", Use{Filters: 100}), prod("d", Use{Filters: 100}), {ID: "e", Held: Use{Filters: 100}},
		}, nil},
		{"hidden", []Holder[string]{
			prod("a", Use{HiddenFilters: 500}), {ID: "b", Held: Use{HiddenFilters: 500}}, {ID: "c", Held: Use{HiddenFilters: 600}}, {ID: "d", Held: Use{HiddenFilters: 10}},
			{ID: "e", Priority: 100, Held: Use{HiddenFilters: 700}},
		}, []string{"c"}},
		{"hidden, not too much", []Holder[string]{prod("a", Use{HiddenFilters: 500}), {ID: "b", Held: Use{HiddenFilters: 300}}}, nil},
	} {
		var got []string
		for _, f := range Over(machine, test.tasks) {
			got = append(got, f.ID)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v end, want %v", test.name, got, test.want)
		}
	}
}

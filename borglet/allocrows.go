package borglet

import (
	"maps"
	"slices"

	"borg/pages"
	"borg/proto/borgpb"
)

// allocRows are the allocs in which copies are, by AllocName.
type allocRows map[string]*allocRow

// allocRow is one alloc in which copies are.
type allocRow struct {
	name     string
	copies   int
	limits   *borgpb.Resources
	memBytes int64
	measured bool
}

// add counts a copy, if it is in an alloc and has not ended. memBytes is what was
// measured of allocs.
func (rows allocRows) add(t *task, memBytes map[string]int64) {
	name := t.Desired.GetAlloc()
	if name == "" || t.phase == ended {
		return
	}
	r := rows[AllocName(name)]
	if r == nil {
		r = &allocRow{name: name, limits: t.Desired.GetAllocResources()}
		r.memBytes, r.measured = memBytes[AllocName(name)]
		rows[AllocName(name)] = r
	}
	r.copies++
}

func allocSection(rows allocRows) pages.Section {
	s := pages.Section{Title: "Allocs", Head: []string{"alloc", "tasks", "memory", "limit"}, More: max(len(rows)-maxTasksShown, 0)}
	for _, key := range slices.Sorted(maps.Keys(rows))[:len(rows)-s.More] {
		r, memory := rows[key], pages.Value{Text: "–", Unit: "bytes"}
		if r.measured {
			memory = pages.Bytes(r.memBytes)
		}
		s.Rows = append(s.Rows, []pages.Value{pages.Text(r.name), pages.Number(r.copies), memory, pages.Bytes(r.limits.GetMemBytes())})
	}
	return s
}

package trace

import (
	"fmt"
	"math"
)

// Unsaid is a moment that nobody named. It is the beginning of Google's traces, and the end
// of tables that export wrote: what came while events were kept is there then. A recording
// goes on from the beginning. Where no machine is there at the beginning, it is the end, or of
// a recording the moment at which the first machine comes.
const Unsaid int64 = -1

// atEnd is a moment after all rows.
const atEnd = math.MaxInt64

// moment is the one that is read of a trace, and how it came to be that one.
type moment struct {
	asked, us int64
	// firstUs is when the first machine is there; negative: none ever is.
	firstUs int64
	// ours: export wrote the tables.
	ours bool
}

// chosen is the moment to read.
func chosen(asked, untilUs, firstUs int64, ours bool) moment {
	m := moment{asked: asked, us: asked, firstUs: firstUs, ours: ours}
	switch {
	case asked != Unsaid:
	case untilUs > 0:
		m.us = max(firstUs, 0)
	case ours || firstUs > 0:
		m.us = atEnd
	default:
		m.us = 0
	}
	return m
}

// words say which moment of a trace a cell is of, and why it is that one. lastUs is the time
// of the last row.
func (m moment) words(lastUs int64) string {
	at := m.us
	if at == atEnd {
		at = lastUs
	}
	words := fmt.Sprintf("--at %d", at)
	switch {
	case m.asked != Unsaid && m.firstUs > m.us:
		return words + fmt.Sprintf("; the first machine comes at %d", m.firstUs)
	case m.asked != Unsaid:
		return words
	case m.us == atEnd && !m.ours:
		return words + fmt.Sprintf(", the end: at 0 there is no machine, the first one comes at %d", m.firstUs)
	case m.us == atEnd:
		return words + ", the end"
	case m.us > 0:
		return words + ", when the first machine comes"
	}
	return words + ", the beginning"
}

// earliest is the earlier of two times; negative: there is none.
func earliest(a, b int64) int64 {
	if a < 0 || b >= 0 && b < a {
		return b
	}
	return a
}

// firstMachine is when the first machine of the tables is there; negative: none ever is.
func (found *found2019) firstMachine() (firstUs int64, err error) {
	o := NewGoogle2019(atEnd, 0)
	for _, t := range tables2019 {
		if t.name != "machine_events" {
			continue
		}
		for _, file := range found.files[t.name] {
			if err := o.readTable(t, file, t.read); err != nil {
				return -1, err
			}
		}
	}
	firstUs = -1
	for i := range o.machines {
		if o.machines[i].what == 0 {
			firstUs = earliest(firstUs, o.machines[i].atUs)
		}
	}
	return firstUs, nil
}

// firstMachine2011 is when the first machine of a folder of the trace of 2011 is there; negative: none
// ever is.
func firstMachine2011(dir string) (int64, error) {
	g := NewGoogle2011(atEnd)
	g.SkipBadRows()
	g.firstUs = -1
	files, err := parts(dir, "machine_events")
	if err != nil {
		return -1, err
	}
	read := g.ReadMachineEvents
	if len(files) == 0 {
		file, err := table(dir, "machine_events")
		if file == "" || err != nil {
			return -1, err
		}
		files, read = []string{file}, g.ReadMachineTable
	}
	for _, file := range files {
		if err := readFile(file, read); err != nil {
			return -1, err
		}
	}
	return g.firstUs, nil
}

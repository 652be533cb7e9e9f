package trace

import (
	"strings"
	"testing"
)

// TestUnknownColumnsAreNamed: a column of the tasks that nobody knows is told, each one.
func TestUnknownColumnsAreNamed(t *testing.T) {
	tables := NewTables()
	if err := tables.ReadMachines("machines.csv", strings.NewReader("machine,cpu,mem,rack\nm,4,8Gi,r1\n")); err != nil {
		t.Fatal(err)
	}
	if err := tables.ReadTasks("tasks.csv", strings.NewReader("job,cpu,mem,constraint,gpus\nann/a,1,1Gi,ssd,2\n")); err != nil {
		t.Fatal(err)
	}
	c, err := tables.Cell()
	if err != nil {
		t.Fatal(err)
	}
	for _, column := range []string{`"constraint"`, `"gpus"`} {
		named := false
		for words := range c.Notes {
			named = named || strings.Contains(words, "column "+column+" of the tasks")
		}
		if !named {
			t.Errorf("column %s is not told; the notes are %v", column, c.Notes)
		}
	}
	if len(c.Notes) != 2 {
		t.Errorf("%v; want two notes: other columns of machines are attributes", c.Notes)
	}
}

package trace

import (
	"strings"
	"testing"

	"borg/proto/borgpb"
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

// TestUnitsOfJobFiles: amounts may have the units of job files, and where no machine can be used
// the error says which line and value, and what is taken.
func TestUnitsOfJobFiles(t *testing.T) {
	tables := NewTables()
	if err := tables.ReadMachines("machines.csv", strings.NewReader("machine,cpu,mem,disk\nm,4,16GiB,1.5TiB\n")); err != nil {
		t.Fatal(err)
	}
	c, err := tables.Cell()
	if err != nil {
		t.Fatal(err)
	}
	if r := c.Machines[0].Spec.Capacity; r.CpuMilli != 4000 || r.MemBytes != 16<<30 || r.DiskBytes != 3<<39 {
		t.Errorf("the machine has %v", r)
	}
	tables = NewTables()
	if err := tables.ReadMachines("machines.csv", strings.NewReader("machine,cpu,mem\nm,4,16 gigs\n")); err != nil {
		t.Fatal(err)
	}
	_, err = tables.Cell()
	for _, part := range []string{"machines.csv:2", "column 3 (mem)", `"16 gigs"`, "16GiB"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v; want it to say %s", err, part)
		}
	}
}

// TestImportedMachinesHavePorts: a job with ports fits on machines of sources that know none.
func TestImportedMachinesHavePorts(t *testing.T) {
	tables := NewTables()
	if err := tables.ReadMachines("machines.csv", strings.NewReader("machine,cpu,mem\nm,4,8Gi\n")); err != nil {
		t.Fatal(err)
	}
	csv, err := tables.Cell()
	if err != nil {
		t.Fatal(err)
	}
	k := NewKubernetes(KubernetesLabels{})
	if err := k.Read("cluster.json", strings.NewReader(`{"items": [{"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1", "memory": "1Gi"}}}]}`)); err != nil {
		t.Fatal(err)
	}
	kube, err := k.Cell()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*Cell{"csv": csv, "kubernetes": kube} {
		if s := c.Machines[0].Spec; s.PortFirst != borgpb.TaskPortFirst || s.PortLast != borgpb.TaskPortLast {
			t.Errorf("%s: the machine offers ports %d to %d", name, s.PortFirst, s.PortLast)
		}
	}
}

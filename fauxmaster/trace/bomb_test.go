package trace

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// repeated is a text that is made while it is read: head, then count times what part says,
// then tail. The heap is looked at every so often.
type repeated struct {
	head, tail string
	part       func(i int) string
	i, count   int
	ready      []byte
	most       uint64
}

func (r *repeated) Read(p []byte) (int, error) {
	for len(r.ready) == 0 {
		switch {
		case r.i == 0:
			r.ready = append(r.ready, r.head...)
		case r.i <= r.count:
			r.ready = append(r.ready, r.part(r.i)...)
		case r.i == r.count+1:
			r.ready = append(r.ready, r.tail...)
		default:
			return 0, io.EOF
		}
		if r.i++; r.i%20_000 == 0 {
			r.most = max(r.most, inUse())
		}
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// bombs are files that keep much of little, each read with 16 MiB for what is kept.
var bombs = map[string]struct {
	text *repeated
	read func(free int64) (read func(string, io.Reader) error, cell func() error)
}{
	"kubernetes: pods": {
		text: &repeated{head: `{"items":[`, count: 2_000_000, tail: `]}`, part: func(i int) string {
			return fmt.Sprintf(`{"kind":"Pod","metadata":{"name":"p%d"},"spec":{"containers":[{}]}},`, i)
		}},
		read: kubernetesBomb,
	},
	"kubernetes: containers that say nothing": {
		text: &repeated{count: 1000, part: func(int) string {
			return `{"kind":"Pod","spec":{"containers":[{}` + strings.Repeat(",{}", 500_000) + `]}}`
		}},
		read: kubernetesBomb,
	},
	"kubernetes: nodes": {
		text: &repeated{head: `[`, count: 2_000_000, part: func(i int) string {
			return fmt.Sprintf(`{"kind":"Node","metadata":{"labels":{"a%d":"","b":""}}},`, i)
		}},
		read: kubernetesBomb,
	},
	"nomad: allocations": {
		text: &repeated{head: `[`, count: 2_000_000, part: func(i int) string { return fmt.Sprintf(`{"ID":"%d","TaskGroup":""},`, i) }},
		read: nomadBomb,
	},
	"nomad: counts": {
		text: &repeated{count: 10_000, tail: `{"ID":"n","SchedulingEligibility":""}`, part: func(i int) string {
			return fmt.Sprintf(`{"ID":"j%d","TaskGroups":[{"Name":"g","Count":99999}]}`, i)
		}},
		read: nomadBomb,
	},
	"csv: counts": {
		text: &repeated{head: "job,cpu,mem,count\n", count: 10_000, part: func(i int) string { return fmt.Sprintf("j%d,1,1,99999\n", i) }},
		read: func(free int64) (func(string, io.Reader) error, func() error) {
			t := NewTables()
			t.kept.free = free
			return t.ReadTasks, nil
		},
	},
	"google2011: users in long lines": {
		text: &repeated{count: 1_000_000, part: func(i int) string {
			return fmt.Sprintf("0,,%d,0,,0,%d%s,0,0,,,,\n", i+1, i, strings.Repeat("u", 1000))
		}},
		read: func(free int64) (func(string, io.Reader) error, func() error) {
			g := NewGoogle2011(1)
			g.SkipBadRows()
			g.kept.free = free
			return g.ReadTaskEvents, nil
		},
	},
	"google2019: events": {
		text: &repeated{count: 2_000_000, part: func(i int) string {
			return fmt.Sprintf(`{"time":"0","type":"0","collection_id":"%d","instance_index":"0"}`+"\n", i+1)
		}},
		read: func(free int64) (func(string, io.Reader) error, func() error) {
			g := NewGoogle2019(1, 1)
			g.replay.kept.free = free
			return func(_ string, in io.Reader) error { return g.Read("instance_events.json", in) }, nil
		},
	},
	"openb: pods": {
		text: &repeated{head: "name,cpu_milli,mem_mib,gpu_count,gpu_milli,gpu_spec\n", count: 2_000_000, part: func(i int) string {
			return fmt.Sprintf("p%d,1,1,0,0,\n", i)
		}},
		read: func(free int64) (func(string, io.Reader) error, func() error) {
			o := &Openb{kept: ledger{free: free}}
			return o.ReadPods, nil
		},
	},
}

func kubernetesBomb(free int64) (func(string, io.Reader) error, func() error) {
	k := NewKubernetes(KubernetesLabels{})
	k.kept.free = free
	return k.Read, func() error { _, err := k.Cell(); return err }
}

func nomadBomb(free int64) (func(string, io.Reader) error, func() error) {
	n := NewNomad()
	n.kept.free = free
	return n.Read, func() error { _, err := n.Cell(); return err }
}

// TestImportBombs: what keeps more than it may is refused whole with the bound, before it
// takes more memory than a few times that.
func TestImportBombs(t *testing.T) {
	const free = 16 << 20
	for name, c := range bombs {
		t.Run(name, func(t *testing.T) {
			before := inUse()
			c.text.most = before
			read, cell := c.read(free)
			err := read("bomb", c.text)
			if err == nil && cell != nil {
				err = cell()
			}
			c.text.most = max(c.text.most, inUse())
			runtime.KeepAlive(read)
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("more than %d bytes of memory", free)) {
				t.Fatalf("got %v", err)
			}
			if grown := c.text.most - before; grown > 4*free {
				t.Errorf("it took %d bytes of memory; the bound is %d", grown, free)
			}
		})
	}
}

// TestKeptFollowsTheFile: a large file may keep more than a small one.
func TestKeptFollowsTheFile(t *testing.T) {
	var l ledger
	l.from(&File{packed: 3 << 20})
	if got, want := l.most(), int64(128<<20+64*(3<<20)); got != want {
		t.Errorf("of 3 MiB %d bytes may be kept, want %d", got, want)
	}
}

// TestLongItems: one object or row is read to its bound and no further.
func TestLongItems(t *testing.T) {
	endless := func(head string) io.Reader {
		return &repeated{head: head, count: 1 << 20, part: func(int) string { return strings.Repeat("x", 1<<10) }}
	}
	for name, c := range map[string]struct {
		read func() error
		want string
	}{
		"an object": {func() error { return NewNomad().Read("f", endless(`[{"a":"`)) }, "an object of more than 4194304 bytes"},
		"a key":     {func() error { return NewNomad().Read("f", endless(`[{"`)) }, "an object of more than 4194304 bytes"},
		"a text":    {func() error { return NewNomad().Read("f", endless(`"`)) }, "an object of more than 4194304 bytes"},
		"many fields": {func() error {
			return NewNomad().Read("f", &repeated{head: "{", count: 1 << 22, part: func(i int) string { return fmt.Sprintf(`"%d":0,`, i) }})
		}, "an object of more than 4194304 bytes"},
		"a row of CSV": {func() error {
			return NewGoogle2019(1, 1).Read("machine_events.csv", endless("time,machine_id,type\n1,1,\""))
		}, "a row of more than 1114112 bytes"},
		"a line": {func() error { return NewTables().ReadTasks("f", endless("job,cpu,mem\n")) }, "a line of more than 65536 bytes"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := c.read()
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
			t.Errorf("%s: %d bytes were allocated", name, took)
		}
	}
}

// TestNotesAreBounded: words of a file do not become more notes than are told.
func TestNotesAreBounded(t *testing.T) {
	k := NewKubernetes(KubernetesLabels{})
	err := k.Read("f", &repeated{count: 5000, part: func(i int) string { return fmt.Sprintf(`{"kind":"K%d"}`, i) }})
	if err != nil || len(k.cell.Notes) != maxNotes+1 {
		t.Errorf("5,000 kinds make %d notes (%v), want %d", len(k.cell.Notes), err, maxNotes+1)
	}
}

// TestUnpackedIsBounded: a file of some kilobytes that becomes more than a gigabyte is
// refused with its name.
func TestUnpackedIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("unpacks a gigabyte")
	}
	path := filepath.Join(t.TempDir(), "bomb.zst")
	var packed bytes.Buffer
	w, err := zstd.NewWriter(&packed, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(w, zeros{}, freeUnpackedBytes+1); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := io.Copy(io.Discard, f)
	if err == nil || n != freeUnpackedBytes || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "more than 1073741824 bytes") {
		t.Errorf("of %d packed bytes %d were read: %v", packed.Len(), n, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestInflateIsBounded: a few machines and one small pod do not become a billion pods.
func TestInflateIsBounded(t *testing.T) {
	o := &Openb{Machines: []OpenbMachine{{Name: "m", GPUs: 1024, Model: "x"}}, Pods: []OpenbPod{{Name: "p", GPUs: 1, GPUMilli: 1}}}
	if _, err := o.Inflate(1, 1_000_000); err == nil || !strings.Contains(err.Error(), "more than 2000000 pods") {
		t.Errorf("got %v", err)
	}
	if pods, err := o.Inflate(1, 1); err != nil || len(pods) != 10240 {
		t.Errorf("of 1 percent: %d pods, %v", len(pods), err)
	}
}

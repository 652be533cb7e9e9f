package cell

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

const (
	goldenLog    = "testdata/golden.log.gz"
	goldenDigest = "testdata/golden.digest"
)

// TestGoldenLog applies a recorded log and wants the digest that it led to when
// it was recorded, and on the way the digests that were logged. The log is that of
// a random walk; -rewrite records another one, as long as no cell depends on it.
func TestGoldenLog(t *testing.T) {
	if f := flag.Lookup("rewrite"); f != nil && f.Value.String() == "true" {
		recordGolden(t)
	}
	applyGolden(t, func(*Cell) {})
}

// applyGolden applies the recorded log, and calls look with the cell now and then.
func applyGolden(t *testing.T, look func(*Cell)) *Cell {
	t.Helper()
	file, err := os.Open(goldenLog)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	c := New("golden", 1)
	for len(data) > 0 {
		n := binary.BigEndian.Uint32(data)
		c.Apply(c.Index()+1, 1+c.Index()/1000, data[4:4+n])
		data = data[4+n:]
		if c.Index()%100 == 0 {
			look(c)
		}
	}
	want, err := os.ReadFile(goldenDigest)
	if err != nil {
		t.Fatal(err)
	}
	if got := goldenWords(c); got != strings.TrimSpace(string(want)) {
		t.Errorf("the log leads to %s, want %s", got, want)
	}
	return c
}

func goldenWords(c *Cell) string {
	at, d, _ := c.LastDigest()
	return fmt.Sprintf("%d %x %d %x", c.Index(), c.Digest(), at, d)
}

func recordGolden(t *testing.T) {
	g := generator{testLog: newTestLog(t), r: rand.New(rand.NewPCG(7, 10)), even: true}
	g.c = New("golden", 1)
	var log bytes.Buffer
	z := gzip.NewWriter(&log)
	for i := range 4_000 {
		g.cellNs += second / 5
		g.wallNs += second / 5
		g.term = 1 + g.c.Index()/1000
		op := g.next()
		switch i {
		case 0:
			op = marshal(t, &borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
		case 1, 3_950:
			// The walk seldom has a user make more requests than are remembered, and gives the
			// budget up again.
			op = marshal(t, &borgpb.Op{Op: &borgpb.Op_SetStateBudget{SetStateBudget: &borgpb.SetStateBudget{
				User: "u", Amounts: []*borgpb.StateAmount{{Measure: measureRequests, Amount: int64(800 - i/5)}}}}})
		}
		data := marshal(t, &borgpb.Entry{CellTimeNs: g.cellNs, WallTimeNs: g.wallNs, Ops: [][]byte{op}})
		z.Write(binary.BigEndian.AppendUint32(nil, uint32(len(data))))
		z.Write(data)
		g.c.Apply(g.c.Index()+1, g.term, data)
	}
	z.Close()
	if err := os.WriteFile(goldenLog, log.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(goldenDigest, []byte(goldenWords(g.c)+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

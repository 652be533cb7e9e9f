package cell

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

const recordPage = "../../docs/format-cell-records.md"

// TestRecordPage holds the page about records to the code: every kind is on
// it, and its example is what a cell writes.
func TestRecordPage(t *testing.T) {
	text, err := os.ReadFile(recordPage)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, kind := range []byte{
		kindHead, kindMachine, kindAllocSet, kindAlloc, kindJob, kindSpec, kindTask, kindCopy, kindUpdate, kindRequest, kindRequestMark,
		kindUser, kindToken, kindSecret, kindCellKey, kindFileChanges, kindFile,
	} {
		if !strings.Contains(page, fmt.Sprintf("\n| `%02x` | ", kind)) {
			t.Errorf("%s has no row for records of kind %02x", recordPage, kind)
		}
	}

	c := New("c0ffee", 1)
	op := addMachine("m1", 2000, 1<<30)
	op.RequestId, op.RequestWallNs = "", 0
	op.GetAddMachine().Spec.Addr = "10.0.0.1:7101"
	c.Apply(2, 1, marshal(t, &borgpb.Entry{CellTimeNs: 1, WallTimeNs: 1_800_000_000e9, Ops: [][]byte{marshal(t, op)}}))
	var key, value []byte
	for k, v := range c.Records() {
		if k[0] == kindMachine {
			key, value = append(key, k...), append(value, v...)
		}
	}
	if got, want := exampleBytes(page, "key"), hex.EncodeToString(key); got != want {
		t.Errorf("the example's key on %s is %s, want %s", recordPage, got, want)
	}
	if got, want := exampleBytes(page, "value"), hex.EncodeToString(value); got != want {
		t.Errorf("the example's value on %s is %s, want %s", recordPage, got, want)
	}
}

// exampleBytes joins the hexadecimal column of a block that begins with its
// name on a line of its own.
func exampleBytes(page, name string) string {
	_, block, _ := strings.Cut(page, "```\n"+name+"\n")
	block, _, _ = strings.Cut(block, "```")
	var all strings.Builder
	for line := range strings.Lines(block) {
		bytes, _, _ := strings.Cut(strings.TrimSpace(line), "  ")
		all.WriteString(strings.ReplaceAll(bytes, " ", ""))
	}
	return all.String()
}

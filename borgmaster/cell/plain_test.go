package cell

import (
	"bytes"
	"strings"
	"testing"
)

// TestPlainRecords: every record of the golden cell, now and then, and of one that is restored, comes out as JSON and in again as it was.
func TestPlainRecords(t *testing.T) {
	kinds := make(map[byte]bool)
	look := func(c *Cell) {
		for key, value := range c.Records() {
			kinds[key[0]] = true
			line, err := PlainRecord(key, value)
			if err != nil {
				t.Fatalf("record %x: %v", key, err)
			}
			k, v, err := ReadPlainRecord(line)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			if !bytes.Equal(k, key) || !bytes.Equal(v, value) {
				t.Fatalf("%s\nis read as %x %x, was %x %x", line, k, v, key, value)
			}
		}
	}
	restored := reload(t, applyGolden(t, look))
	if err := restored.Restore(2); err != nil {
		t.Fatal(err)
	}
	look(restored)
	l := endingLog(t, 2*maxEndedJobs, endingWays[0].depends)
	l.do(killJob("j0"))
	look(l.c)
	for kind, name := range kindNames {
		if !kinds[kind] && name != "token" {
			t.Errorf("the golden cell never has a %s", name)
		}
	}
}

// TestPlainRecordFaults: what is wrong is said by name.
func TestPlainRecordFaults(t *testing.T) {
	for _, q := range []struct{ line, want string }{
		{`{}`, "no kind"},
		{`{"key":{"kind":"user","name":"u"},"value":{"capabilities":[],"revoked_wall_ns":0}} x`, "after"},
		{`{"key":{"kind":"user","name":"u"},"value":{"capabilities":[]}}`, `"revoked_wall_ns" is missing`},
		{`{"key":{"kind":"user","name":"u"},"value":{"capabilities":[],"revoked_wall_ns":0,"age":3}}`, `no field "age"`},
		{`{"key":{"kind":"user","name":"u"},"value":{"capabilities":[],"revoked_wall_ns":"x"}}`, "not a number"},
		{`{"key":{"kind":"user","name":"u"},"value":{"capabilities":[{"name":3}],"revoked_wall_ns":0}}`, "capabilities[0]"},
		{`{"key":{"kind":"task","uid":"1-2","index":0},"value":{}}`, "not a uid"},
	} {
		_, _, err := ReadPlainRecord([]byte(q.line))
		if err == nil || !strings.Contains(err.Error(), q.want) {
			t.Errorf("%s: %v, want %q", q.line, err, q.want)
		}
	}
}

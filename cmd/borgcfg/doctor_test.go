package main

import (
	"slices"
	"testing"

	"borg/proto/borgrpc"
)

// TestAlikeOnce: replicas that say the same are named in one finding, also when what to do
// next is of each.
func TestAlikeOnce(t *testing.T) {
	finding := func(severity borgrpc.Severity, text, next string) *borgrpc.Finding {
		return &borgrpc.Finding{Severity: severity, Text: text, Next: next}
	}
	const warning, fault = borgrpc.Severity_SEVERITY_WARNING, borgrpc.Severity_SEVERITY_FAULT
	got := alikeOnce([]told{
		{[]string{"1"}, finding(warning, "The disk is full.", "see /1")},
		{[]string{"1"}, finding(warning, "The clock is wrong.", "set it")},
		{[]string{"2 (elected)"}, finding(warning, "The disk is full.", "see /2")},
		{[]string{"2 (elected)"}, finding(warning, "The clock is wrong.", "set it")},
		{[]string{"3"}, finding(fault, "The disk is full.", "see /3")},
	})
	want := []struct {
		replicas   []string
		text, next string
	}{
		{[]string{"3"}, "The disk is full.", "see /3"},
		{[]string{"1", "2 (elected)"}, "The disk is full.", "replica 1: see /1; replica 2 (elected): see /2"},
		{[]string{"1", "2 (elected)"}, "The clock is wrong.", "set it"},
	}
	if len(got) != len(want) {
		t.Fatalf("%d findings, want %d: %v", len(got), len(want), got)
	}
	for i, w := range want {
		if g := got[i]; !slices.Equal(g.replicas, w.replicas) || g.finding.Text != w.text || g.finding.Next != w.next {
			t.Errorf("finding %d: %v %v, want %v", i, g.replicas, g.finding, w)
		}
	}
}

package cell

import (
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// TestLabelKeys sends odd keys in each op that takes labels or annotations.
func TestLabelKeys(t *testing.T) {
	for _, tt := range []struct {
		key  string
		good bool
	}{
		{"tier", true}, {"app.example.org/name_1", true}, {"größe", true}, {"x:y+z", true},
		{"", false}, {"a b", false}, {"a\n", false}, {"\x1b[31m", false}, {"a\u00a0b", false}, {"a\u200bb", false}, {"\xff", false},
		{"a,b", false}, {"a=b", false}, {"!a", false}, {"f(x)", false}, {"a<b", false}, {"a-", false}, {strings.Repeat("k", 64), false},
	} {
		with := map[string]string{tt.key: "v"}
		if r := checkLabels(with, nil); (r == nil) != tt.good {
			t.Errorf("label %q: %v, want good %v", tt.key, r, tt.good)
		}
		if r := checkLabels(nil, with); (r == nil) != (tt.good || len(tt.key) > maxLabelKeyBytes) {
			t.Errorf("annotation %q: %v, want good %v", tt.key, r, tt.good)
		}
		if r := checkLabelKey("annotations", tt.key); (r == nil) != tt.good {
			t.Errorf("annotation %q alone: %v, want good %v", tt.key, r, tt.good)
		}
		rule := &borgpb.LabelRule{Kinds: []borgpb.Labelled{borgpb.Labelled_LABELLED_JOB}, Key: tt.key, Required: true}
		if r := checkLabelRule(rule); (r == nil) != tt.good {
			t.Errorf("rule of %q: %v, want good %v", tt.key, r, tt.good)
		}
	}
}

// TestOddLabelKeysAreRefused sends them as a raw client does, with each op that takes them.
func TestOddLabelKeysAreRefused(t *testing.T) {
	l := newTestLog(t)
	l.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	l.do(asUser("u", submitJob(t, "good", service(1, 200, 1000, 1<<30))))
	for _, key := range []string{"", "a b", "a\n", "a,b", "a-"} {
		with := map[string]string{key: "v"}
		job := submitJob(t, "odd", service(1, 200, 1000, 1<<30))
		job.GetSubmitJob().Labels = with
		noted := submitJob(t, "odd", service(1, 200, 1000, 1<<30))
		noted.GetSubmitJob().Annotations = with
		update := updateJob(t, "good", service(1, 200, 1000, 1<<30))
		update.GetUpdateJob().Labels = with
		set := submitSet(t, "odd", &borgpb.AllocSetSpec{Allocs: 1, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30}})
		set.GetSubmitAllocSet().Labels = with
		for _, op := range []*borgpb.Op{job, noted, update, set,
			{Op: &borgpb.Op_SetLabels{SetLabels: &borgpb.SetLabels{Kind: borgpb.Labelled_LABELLED_JOB, User: "u", Name: "good", SetLabels: with}}},
			{Op: &borgpb.Op_SetLabels{SetLabels: &borgpb.SetLabels{Kind: borgpb.Labelled_LABELLED_JOB, User: "u", Name: "good", SetAnnotations: with}}},
		} {
			results, _ := l.apply(asUser("u", op))
			if r := results[0].Refusal; r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_INVALID || !strings.Contains(r.GetMessage(), "the key") {
				t.Errorf("key %q in %T: got %v, want INVALID", key, op.Op, r)
			}
		}
	}
}

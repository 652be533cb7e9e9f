package cell

import (
	"bytes"
	"reflect"
	"testing"
	"unsafe"
)

// TestCrashFieldsCount changes each field of what is remembered of a task's crashes, and
// wants its record to change.
func TestCrashFieldsCount(t *testing.T) {
	task := &Task{job: &Job{uid: UID{1, 2, 3}}, attempt: 1}
	task.job.rows = []*Task{task}
	r := &task.rare().crashed
	*r = crashRow{machine: "m1", version: 1, copies: 2, crashes: 5, lastNs: 7}
	v := reflect.ValueOf(r).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		before := encoded(task)
		if !change1(task, reflect.NewAt(f.Type, unsafe.Pointer(v.Field(i).UnsafeAddr())).Elem()) {
			t.Fatalf("%s: the test does not know how to change a %v", f.Name, f.Type)
		}
		if bytes.Equal(before, encoded(task)) {
			t.Errorf("%s: changed, and the record is the same", f.Name)
		}
	}
}

// TestAwayWhere: of two machines that a task is kept away from the one of the copy in
// quarantine stays the longer.
func TestAwayWhere(t *testing.T) {
	both := Away{Kept: "q", Crashed: "c"}
	for _, x := range []struct {
		away     Away
		machines []string
		want     Away
	}{
		{Away{}, nil, Away{}},
		{Away{Crashed: "c"}, []string{"c"}, Away{}},
		{Away{Crashed: "c"}, []string{"c", "d"}, Away{Crashed: "c"}},
		{both, []string{"c", "d", "q"}, both},
		{both, []string{"c", "q"}, Away{Kept: "q"}},
		{both, []string{"c"}, Away{Kept: "q"}},
		{both, []string{"q"}, Away{}},
	} {
		got := x.away.Where(func(but Away) bool {
			for _, m := range x.machines {
				if !but.From(m) {
					return true
				}
			}
			return false
		})
		if got != x.want {
			t.Errorf("%+v among %v: kept away from %+v, want %+v", x.away, x.machines, got, x.want)
		}
	}
}

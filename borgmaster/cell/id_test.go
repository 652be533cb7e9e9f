package cell

import "testing"

func TestParseIDs(t *testing.T) {
	for _, s := range []string{"1-2-3", "0-0-0", "18446744073709551615-1-4294967295"} {
		if u, err := ParseUID(s); err != nil || u.String() != s {
			t.Errorf("ParseUID(%q) = %v, %v", s, u, err)
		}
	}
	for _, s := range []string{"", "1", "1-2", "1-2-3-4", "01-2-3", "1-2-4294967296", "-1-2-3", "1-2-3 ", "18446744073709551616-1-1"} {
		if u, err := ParseUID(s); err == nil {
			t.Errorf("ParseUID(%q) = %v, want an error", s, u)
		}
	}
	if id, err := ParseTaskID("ann/web/3"); err != nil || id.String() != "ann/web/3" {
		t.Errorf("ParseTaskID = %v, %v", id, err)
	}
	for _, s := range []string{"", "ann", "ann/web", "ann/web/", "ann/web/x", "ann/web/03", "Ann/web/3", "ann//3", "ann/web/4294967296"} {
		if id, err := ParseTaskID(s); err == nil {
			t.Errorf("ParseTaskID(%q) = %v, want an error", s, id)
		}
	}
}

func TestResources(t *testing.T) {
	a := Resources{CPUMilli: 5, MemBytes: 7, Devices: []Device{{"a", 1}, {"c", 2}}}
	b := Resources{CPUMilli: 2, MemBytes: 9, Ports: 1, Devices: []Device{{"b", 1}, {"c", 2}}}
	sum := a.Add(b)
	if got := sum.Sub(b); !got.Equal(a) {
		t.Errorf("a + b - b = %+v, want %+v", got, a)
	}
	if got, want := a.Min(b), (Resources{CPUMilli: 2, MemBytes: 7, Devices: []Device{{"c", 2}}}); !got.Equal(want) {
		t.Errorf("Min = %+v, want %+v", got, want)
	}
	if !a.Fits(sum) || sum.Fits(a) || !(Resources{}).Fits(Resources{MemBytes: -1}) {
		t.Error("Fits is wrong")
	}
	if got := FromProto(sum.Proto()); !got.Equal(sum) {
		t.Errorf("there and back: %+v, want %+v", got, sum)
	}
}

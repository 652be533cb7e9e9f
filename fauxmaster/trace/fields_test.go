package trace

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestFieldsAreInThePage holds the table of fields and docs/import.md together, row by
// row in both directions.
func TestFieldsAreInThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/import.md")
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]bool)
	for _, o := range objects {
		for _, f := range o.fields {
			if f.fate != fieldAside {
				want[fmt.Sprintf("| %s | `%s` | %s | %s |", o.name, f.name, f.fate, f.words)] = true
			}
		}
		var aside []string
		for _, f := range o.fields {
			if f.fate == fieldAside {
				aside = append(aside, "`"+f.name+"`")
			}
		}
		if len(aside) > 0 {
			want[fmt.Sprintf("| %s | %s | %s | |", o.name, strings.Join(aside, ", "), fieldAside)] = true
		}
	}
	_, table, _ := strings.Cut(string(page), "| object | field |")
	for row := range strings.SplitSeq(table, "\n") {
		if !strings.HasPrefix(row, "| ") || strings.HasPrefix(row, "| fate") {
			if row == "" {
				break
			}
			continue
		}
		if strings.Contains(row, "| becomes |") || want[row] {
			delete(want, row)
			continue
		}
		t.Errorf("the page has a row that the code has not: %s", row)
	}
	for row := range want {
		t.Errorf("the page lacks: %s", row)
	}
}

// TestFieldsThatAreReadAreInTheTable holds what the importers read to the table.
func TestFieldsThatAreReadAreInTheTable(t *testing.T) {
	for _, of := range []struct {
		object *object
		read   any
	}{
		{&podSpec, kubePodSpec{}}, {&podStatus, kubePod{}.Status}, {&podMetadata, kubeMeta{}}, {&kubeContainerFields, kubeContainer{}}, {&kubeResourceFields, kubeRequests{}},
		{&kubePortFields, kubePort{}}, {&kubeVolumeFields, kubeVolume{}}, {&kubeAffinityFields, kubeAffinity{}}, {&kubeNodeAffinityFields, kubeNodeAffinity{}},
		{&kubePodAffinityFields, kubePodAffinity{}}, {&kubeTermFields, kubeTerm{}}, {&kubePodTermFields, kubePodTerm{}}, {&kubeTolerationFields, kubeToleration{}},
		{&nodeSpec, kubeNode{}.Spec}, {&nodeStatus, kubeNode{}.Status}, {&kubeTaintFields, kubeTaint{}}, {&kubeTemplateFields, kubeWorkload{}.Spec.Template},
		{&budgetSpec, kubeBudget{}.Spec}, {&claimSpec, kubeClaim{}.Spec}, {&diskSpec, kubeDisk{}.Spec},
		{&nomadJobObject, nomadJob{}}, {&nomadGroupObject, nomadGroup{}}, {&nomadTaskObject, nomadTask{}}, {&nomadRequestObject, nomadRequest{}}, {&nomadNetworkObject, nomadNetwork{}},
		{&nomadLifecycleObject, nomadLifecycle{}}, {&nomadConstraintObject, nomadConstraint{}}, {&nomadAllocObject, nomadAlloc{}}, {&nomadNodeObject, nomadNode{}},
		{&nomadNodeResourcesObject, nomadResources{}},
	} {
		read := reflect.TypeOf(of.read)
		for field := range read.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			name = cmp.Or(name, field.Name)
			found := false
			for _, f := range of.object.fields {
				found = found || strings.EqualFold(f.name, name) && f.fate != fieldAside
			}
			if !found {
				t.Errorf("%s: %s is read, and the table says that it changes nothing", of.object.name, name)
			}
		}
	}
}

// TestLostFieldsAreCounted: each field that is lost is counted, and so is one that nobody
// knows; an empty one is not.
func TestLostFieldsAreCounted(t *testing.T) {
	for _, o := range objects {
		for _, f := range o.fields {
			c := &Cell{}
			o.count(c, json.RawMessage(`{"`+f.name+`": "some"}`))
			if (len(c.Notes) == 1) != (f.fate == fieldLost) {
				t.Errorf("%s: %s is %s, and the notes are %v", o.name, f.name, f.fate, c.Notes)
			}
			c = &Cell{}
			if o.count(c, json.RawMessage(`{"`+f.name+`": null}`)); len(c.Notes) != 0 {
				t.Errorf("%s: an empty %s is counted: %v", o.name, f.name, c.Notes)
			}
		}
		c := &Cell{}
		if o.count(c, json.RawMessage(`{"newField": 1}`)); len(c.Notes) != 1 {
			t.Errorf("%s: a field that is not known: %v", o.name, c.Notes)
		}
	}
}

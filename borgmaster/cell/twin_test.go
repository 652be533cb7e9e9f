package cell

import (
	"fmt"
	"reflect"
	"strings"

	"google.golang.org/protobuf/proto"
)

// twins compares a cell with one that was loaded from its records, field by field: a count, an
// index or a sum that the cell keeps up to date must be what Load derives anew.
type twins struct {
	// Pairs of pointers that were compared, or are being compared.
	seen map[[2]uintptr]bool
	path []string
	// By field, where the first difference is.
	found map[string]string
}

// mayDiffer names the fields that are not what Load makes them, each with the reason.
var mayDiffer = map[string]string{
	"mark.unflushed":       "lists of Flush",
	"mark.unsettled":       "lists of Flush",
	"mark.changed":         "of the last entry",
	"Job.changedAt":        "of the last entry",
	"Cell.records":         "lists of Flush, and room for encoding",
	"Cell.readings":        "a cache",
	"Cell.now":             "of the last entry",
	"Cell.submitting":      "room for an op",
	"Cell.asked":           "of the last entry",
	"Job.lastEdge":         "of the last op",
	"Machine.changes":      "counts only while a replica runs",
	"order.runs":           "where it is cut is of no matter; Check verifies the rest",
	"Job.own":              "room for a first row",
	"Job.ended":            "Check verifies it where it means something",
	"Cell.leaveDueNs":      "a bound",
	"Cell.heldPortsDueNs":  "a bound",
	"Cell.drainDueNs":      "a bound",
	"Cell.saveDueNs":       "a bound",
	"Cell.quarantineDueNs": "a bound",
	"users.adminChanges":   "counts only while a replica runs",
	"bans.dueWallNs":       "a bound",
	"Job.leaveDueNs":       "a bound",
	"Job.updateDueNs":      "a bound",
	"Update.cursor":        "a bound",
	"dues.heap":            "stale entries",
	"dues.dropAt":          "stale entries",
	"graveyard.queue":      "entries of who is gone",
	"graveQueue.graves":    "entries of who is gone",
	"requests.room":        "room for requests",
	"requests.queue":       "entries of who is gone",
	"Volume.dueNs":         "of an entry of the heap, which may be stale",
	"Update.watched":       "whose window is over is asked again after a load; Check verifies the rest",
	"Update.askedNs":       "machines are asked again after a load",
	"daemon.at":            "Check verifies it",
}

// differences says by field where two cells differ.
func differences(a, b *Cell) map[string]string {
	t := twins{seen: make(map[[2]uintptr]bool), found: make(map[string]string)}
	t.values("Cell", reflect.ValueOf(a), reflect.ValueOf(b))
	return t.found
}

var protoMessage = reflect.TypeFor[proto.Message]()

func (t *twins) values(field string, a, b reflect.Value) {
	switch a.Kind() {
	case reflect.Pointer:
		t.pointers(field, a, b)
	case reflect.Struct:
		t.structs(a, b)
	case reflect.Map:
		t.maps(field, a, b)
	case reflect.Slice, reflect.Array:
		t.lists(field, a, b)
	case reflect.Interface:
		if a.IsNil() || b.IsNil() || a.Elem().Type() != b.Elem().Type() {
			t.unless(a.IsNil() && b.IsNil(), field, a, b)
			return
		}
		t.values(field, a.Elem(), b.Elem())
	case reflect.Func:
	default:
		t.unless(a.Equal(b), field, a, b)
	}
}

func (t *twins) unless(same bool, field string, a, b reflect.Value) {
	if !same && t.found[field] == "" {
		t.found[field] = fmt.Sprintf("%s is %v, and %v when loaded", strings.Join(t.path, ""), a, b)
	}
}

// under compares two values that are at a place below the present one.
func (t *twins) under(place, field string, a, b reflect.Value) {
	t.path = append(t.path, place)
	t.values(field, a, b)
	t.path = t.path[:len(t.path)-1]
}

func (t *twins) pointers(field string, a, b reflect.Value) {
	if a.IsNil() || b.IsNil() {
		t.unless(empty(a) && empty(b), field, a, b)
		return
	}
	pair := [2]uintptr{a.Pointer(), b.Pointer()}
	if t.seen[pair] {
		return
	}
	t.seen[pair] = true
	if isGone(a) {
		// Only the memory of copies that ended names it: Load has a stand-in for it.
		return
	}
	t.values(field, a.Elem(), b.Elem())
}

// empty tells whether nothing is said by a pointer: what few copies have may be there and empty.
func empty(p reflect.Value) bool {
	return p.IsNil() || p.Type() == reflect.TypeFor[*rareCopy]() && p.Elem().IsZero()
}

// isGone tells whether a machine, a job or an alloc set has left the cell.
func isGone(p reflect.Value) bool {
	e := p.Elem()
	if e.Kind() != reflect.Struct {
		return false
	}
	f := e.FieldByName("gone")
	return f.IsValid() && f.Bool()
}

func (t *twins) structs(a, b reflect.Value) {
	of := a.Type()
	message := reflect.PointerTo(of).Implements(protoMessage)
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(of.Name(), "[")
		field := name + "." + f.Name
		if _, may := mayDiffer[field]; may || message && !f.IsExported() {
			continue
		}
		t.under("."+f.Name, field, a.Field(i), b.Field(i))
	}
}

func (t *twins) maps(field string, a, b reflect.Value) {
	if a.Len() != b.Len() {
		t.unless(false, field, a, b)
		return
	}
	for _, k := range a.MapKeys() {
		other := b.MapIndex(k)
		if !other.IsValid() {
			t.unless(false, field, a, b)
			return
		}
		t.under(fmt.Sprintf("[%v]", k), field, a.MapIndex(k), other)
	}
}

func (t *twins) lists(field string, a, b reflect.Value) {
	if a.Type() == reflect.TypeFor[bitmap]() {
		a, b = trimmed(a), trimmed(b)
	}
	if a.Len() != b.Len() {
		t.unless(false, field, a, b)
		return
	}
	for i := range a.Len() {
		t.under(fmt.Sprintf("[%d]", i), field, a.Index(i), b.Index(i))
	}
}

// trimmed drops the words of a bitmap behind the last one.
func trimmed(b reflect.Value) reflect.Value {
	n := b.Len()
	for n > 0 && b.Index(n-1).IsZero() {
		n--
	}
	return b.Slice(0, n)
}

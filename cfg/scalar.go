package cfg

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// scalar decodes text, numbers, truth values, words of enums and quantities.
func (d *decoder) scalar(n *node, fd protoreflect.FieldDescriptor, col column, path string) (protoreflect.Value, bool) {
	var none protoreflect.Value
	if d.spent(n) || n.kind == kindFaulty {
		return none, false
	}
	switch fd.Kind() {
	case protoreflect.StringKind:
		if n.kind != kindString {
			hint := ""
			if n.kind == kindInt || n.kind == kindFloat || n.kind == kindBool {
				hint = fmt.Sprintf("write %q", n.text)
			}
			d.fault(n.pos, n.width, hint, "%s must be text, not %s", col.name, n.describe())
			return none, false
		}
		if strings.ContainsRune(n.text, 0) {
			d.fault(n.pos, n.width, "", "%s holds a NUL character", col.name)
			return none, false
		}
		return protoreflect.ValueOfString(n.text), true
	case protoreflect.BoolKind:
		if n.kind != kindBool {
			d.fault(n.pos, n.width, "", "%s must be true or false, not %s", col.name, n.describe())
			return none, false
		}
		return protoreflect.ValueOfBool(n.text == "true"), true
	case protoreflect.BytesKind:
		return d.bytesValue(n, col)
	case protoreflect.EnumKind:
		return d.enum(n, fd, col)
	default:
		return d.integer(n, fd, col)
	}
}

func (d *decoder) bytesValue(n *node, col column) (protoreflect.Value, bool) {
	if n.kind != kindString {
		d.fault(n.pos, n.width, "", "%s must be text, not %s", col.name, n.describe())
		return protoreflect.Value{}, false
	}
	raw := []byte(n.text)
	if n.base64 {
		var err error
		if raw, err = base64.StdEncoding.DecodeString(n.text); err != nil {
			d.fault(n.pos, n.width, "bytes are written in base 64 here", "%s: %v", col.name, err)
			return protoreflect.Value{}, false
		}
	}
	return protoreflect.ValueOfBytes(raw), true
}

func (d *decoder) enum(n *node, fd protoreflect.FieldDescriptor, col column) (protoreflect.Value, bool) {
	ed := fd.Enum()
	var words []string
	for i := range ed.Values().Len() {
		num := ed.Values().Get(i).Number()
		if num == 0 {
			continue
		}
		word := enumWord(ed, num)
		words = append(words, word)
		if n.kind == kindString && (strings.EqualFold(n.text, word) || n.text == string(ed.Values().Get(i).Name())) {
			return protoreflect.ValueOfEnum(num), true
		}
	}
	if ed.FullName() == "borg.Relation" && n.kind == kindString {
		if r, ok := relations[n.text]; ok {
			return protoreflect.ValueOfEnum(r.Number()), true
		}
		words = append([]string{"=", "!=", "<", "<=", ">", ">="}, words...)
	}
	hint := "it is one of " + strings.Join(words, ", ")
	if n.kind == kindString {
		if near := nearest(n.text, words); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		d.fault(n.pos, n.width, hint, "%s cannot be %s", col.name, quote(n.text))
	} else {
		d.fault(n.pos, n.width, hint, "%s must be a word, not %s", col.name, n.describe())
	}
	return protoreflect.Value{}, false
}

// integer decodes numbers and quantities. Numbers as text are taken where JSON
// of the same messages has them: 64-bit fields.
func (d *decoder) integer(n *node, fd protoreflect.FieldDescriptor, col column) (protoreflect.Value, bool) {
	var none protoreflect.Value
	wide := fd.Kind() == protoreflect.Int64Kind || fd.Kind() == protoreflect.Uint64Kind
	var value int64
	var err error
	switch {
	case n.kind == kindString && wide && col.unit != unitNone:
		value, err = d.quantity(n.text, col)
	case n.kind == kindString && wide:
		value, err = strconv.ParseInt(n.text, 10, 64)
		if err != nil {
			err = errors.New("it is not a whole number")
		}
	case n.kind == kindInt || n.kind == kindFloat:
		value, err = d.amount(n, col)
	default:
		want := "a whole number"
		hint := ""
		switch col.unit {
		case unitCPU:
			want, hint = "an amount of cpu", `write cores such as 0.5 or 2, or thousandths such as "500m"`
		case unitBytes:
			want, hint = "an amount of bytes", `write it such as "512MiB", "1.5GiB" or "1G"`
		case unitTime:
			want, hint = "a time span", `write it such as "30s" or "1m30s"`
		case unitMicro:
			want = "a number"
		default:
			if _, e := strconv.ParseInt(n.text, 10, 64); e == nil && n.kind == kindString {
				hint = "write " + n.text + " without quotation marks"
			}
		}
		d.fault(n.pos, n.width, hint, "%s must be %s, not %s", col.name, want, n.describe())
		return none, false
	}
	if err == nil {
		return d.fits(n, fd, col, value)
	}
	hint := ""
	what := err.Error()
	if w, h, ok := strings.Cut(what, "; "); ok {
		what, hint = w, h
	}
	d.fault(n.pos, n.width, hint, "%s cannot be %s: %s", col.name, quoteNumber(n), what)
	return none, false
}

func quoteNumber(n *node) string {
	if n.kind == kindString {
		return quote(n.text)
	}
	if len(n.text) > 40 {
		return n.text[:37] + "..."
	}
	return n.text
}

// quantity is text in a field that has a unit.
func (d *decoder) quantity(s string, col column) (int64, error) {
	if col.bare {
		if v, err := strconv.ParseInt(s, 10, 64); err == nil {
			if v < 0 && col.unit != unitMicro {
				return 0, errors.New("it is negative")
			}
			return v, nil
		}
	}
	switch col.unit {
	case unitCPU:
		return parseCPU(s)
	case unitBytes:
		return parseBytes(s)
	case unitMicro:
		return parseMicro(s)
	default:
		return parseDuration(s)
	}
}

// amount is a number, in the unit of its field if the field has one.
func (d *decoder) amount(n *node, col column) (int64, error) {
	text := n.text
	if n.kind == kindFloat {
		text = plainFloat(text)
	}
	if col.unit == unitTime && !col.bare {
		if n.kind == kindInt && n.text == "0" {
			return 0, nil
		}
		return 0, fmt.Errorf("a unit is missing; write %q", n.text+"s")
	}
	if col.unit == unitCPU && !col.bare {
		return parseCPU(text)
	}
	if col.unit == unitBytes && !col.bare {
		return parseBytes(text)
	}
	if col.unit == unitMicro && !col.bare {
		return parseMicro(text)
	}
	r, ok := number(text)
	if !ok {
		return 0, errors.New("it is not a number")
	}
	if !r.IsInt() {
		return 0, errNotWhole
	}
	if !r.Num().IsInt64() {
		return 0, errors.New("it is too large")
	}
	return r.Num().Int64(), nil
}

// plainFloat rounds the trace of binary arithmetic off a decimal number, so
// that 0.1 + 0.2 is 0.3.
func plainFloat(s string) string {
	r, ok := number(s)
	if !ok {
		return s
	}
	s = r.FloatString(9)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// fits checks the range of the field's type and makes its value.
func (d *decoder) fits(n *node, fd protoreflect.FieldDescriptor, col column, v int64) (protoreflect.Value, bool) {
	lo, hi := int64(0), int64(math.MaxInt64)
	switch fd.Kind() {
	case protoreflect.Uint32Kind:
		hi = math.MaxUint32
	case protoreflect.Int32Kind:
		hi = math.MaxInt32
	}
	if col.unit == unitMicro {
		lo = math.MinInt64
	}
	if v < lo || v > hi {
		why := "it is negative"
		if v > hi {
			why = fmt.Sprintf("it is too large (at most %d)", hi)
		}
		d.fault(n.pos, n.width, "", "%s cannot be %s: %s", col.name, quoteNumber(n), why)
		return protoreflect.Value{}, false
	}
	switch fd.Kind() {
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(v)), true
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(v)), true
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(v)), true
	default:
		return protoreflect.ValueOfInt64(v), true
	}
}

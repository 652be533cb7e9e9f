package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strconv"
	"strings"
)

// eachItem reads JSON as a stream: documents one after the other, each a list, an
// object with a list of items, or an item itself.
func eachItem(file string, in io.Reader, take func(json.RawMessage) error) error {
	d := json.NewDecoder(in)
	for {
		t, err := d.Token()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err == nil && t == json.Delim('['):
			err = eachOf(d, take)
		case err == nil && t == json.Delim('{'):
			err = eachInObject(d, take)
		case err == nil:
			err = fmt.Errorf("%v is no object and no list", t)
		}
		if err != nil {
			return fmt.Errorf("%s: at byte %d: %w", file, d.InputOffset(), err)
		}
	}
}

// eachOf takes the elements of a list whose bracket was read.
func eachOf(d *json.Decoder, take func(json.RawMessage) error) error {
	for d.More() {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		if err := take(raw); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// eachInObject takes the items of an object whose brace was read.
func eachInObject(d *json.Decoder, take func(json.RawMessage) error) error {
	fields := make(map[string]json.RawMessage)
	list := false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		if key == "items" {
			switch t, err := d.Token(); {
			case err != nil:
				return err
			case t == nil:
			case t != json.Delim('['):
				return errors.New("items is no list")
			default:
				if err := eachOf(d, take); err != nil {
					return err
				}
			}
			list = true
			continue
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		fields[key.(string)] = raw
	}
	if _, err := d.Token(); err != nil || list {
		return err
	}
	whole, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	return take(whole)
}

// maxNameBytes is how long a name of ours may be.
const maxNameBytes = 63

// names makes names of ours of those of others, each its own: what a DNS label
// cannot have becomes a dash, what is too long is cut, and what two would share
// gets a number.
type names struct {
	of    map[string]string
	taken map[string]bool
}

func newNames() *names { return &names{make(map[string]string), make(map[string]bool)} }

// name is ours for theirs, the same whenever it is asked for.
func (n *names) name(theirs string) string {
	ours, ok := n.of[theirs]
	if !ok {
		ours = n.another(theirs)
		n.of[theirs] = ours
	}
	return ours
}

// another is a name like theirs that nothing has.
func (n *names) another(theirs string) string {
	base := label(theirs)
	ours := base
	for i := 2; n.taken[ours]; i++ {
		suffix := "-" + strconv.Itoa(i)
		ours = strings.TrimRight(base[:min(len(base), maxNameBytes-len(suffix))], "-") + suffix
	}
	n.taken[ours] = true
	return ours
}

// label makes a DNS label of a name.
func label(theirs string) string {
	ours := strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, theirs), "-")
	if ours = strings.TrimRight(ours[:min(len(ours), maxNameBytes)], "-"); ours == "" {
		return "unnamed"
	}
	return ours
}

// attributes adds what an attribute may be, first what somebody asks for, and notes
// what finds no room.
func (c *Cell) attributes(to, from map[string]string, asked map[string]bool) {
	if c.asked == nil {
		c.asked = make(map[string]bool)
		for key := range asked {
			c.asked[attributeKey(key)] = true
		}
	}
	keys := sortedKeys(from)
	slices.SortStableFunc(keys, func(a, b string) int {
		switch {
		case asked[a] == asked[b]:
			return 0
		case asked[a]:
			return -1
		}
		return 1
	})
	for _, key := range keys {
		switch {
		case len(key) == 0 || len(from[key]) > maxValueBytes:
			c.note("labels of machines that are longer than ours may be")
		case len(to) < maxAttributes:
			to[attributeKey(key)] = from[key]
		case asked[key]:
			c.note("labels of machines that tasks ask for, beyond 60 of one machine: what asks for them may wait")
		default:
			c.note("labels of machines beyond 60 of one machine that nothing asks for")
		}
	}
}

// attributeKey is our name of a label: a longer one than ours may be is cut, with a hash
// that keeps it apart from others.
func attributeKey(theirs string) string {
	if len(theirs) <= maxKeyBytes {
		return theirs
	}
	h := fnv.New64a()
	h.Write([]byte(theirs))
	suffix := fmt.Sprintf("~%016x", h.Sum64())
	return strings.ToValidUTF8(theirs[:maxKeyBytes-len(suffix)], "") + suffix
}

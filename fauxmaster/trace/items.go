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

// maxItemBytes bounds an object of JSON, of which all is held while it is read.
const maxItemBytes = int64(4 << 20)

// items is JSON that is read object by object.
type items struct {
	*json.Decoder
	in *upTo
}

// upTo reads up to a byte that moves on with what is taken.
type upTo struct {
	r io.Reader
	// what has at most room bytes.
	what string
	room int64
	// at is the byte that comes next, most the one that does not.
	at, most int64
}

func (u *upTo) Read(p []byte) (int, error) {
	if u.at >= u.most {
		return 0, fmt.Errorf("%s of more than %d bytes", u.what, u.room)
	}
	n, err := u.r.Read(p[:min(int64(len(p)), u.most-u.at)])
	u.at += int64(n)
	return n, err
}

// goOn lets it read what begins at a byte.
func (u *upTo) goOn(at int64) { u.most = max(u.most, at+u.room) }

func newItems(in io.Reader) *items {
	u := &upTo{r: in, what: "an object", room: maxItemBytes, most: maxItemBytes}
	return &items{json.NewDecoder(u), u}
}

// next begins with what comes next: it has so many bytes at most.
func (d *items) next() { d.in.goOn(d.InputOffset()) }

func (d *items) token() (json.Token, error) {
	d.next()
	return d.Token()
}

// value is the next value as it stands.
func (d *items) value() (raw json.RawMessage, err error) {
	d.next()
	return raw, d.Decode(&raw)
}

// more reports whether an object or list goes on.
func (d *items) more() bool {
	d.next()
	return d.More()
}

// ErrNotJSON is the error for a file that is none from its first byte on, such as YAML.
var ErrNotJSON = errors.New("not JSON")

// eachItem reads JSON as a stream: documents one after the other, each a list, an
// object with a list of items, or an item itself.
func eachItem(file string, in io.Reader, take func(json.RawMessage) error) error {
	d := newItems(in)
	for {
		t, err := d.token()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err == nil && t == json.Delim('['):
			err = eachOf(d, take)
		case err == nil && t == json.Delim('{'):
			err = eachInObject(d, take)
		case err == nil:
			err = fmt.Errorf("%v is no object and no list", t)
		case d.InputOffset() == 0 && errors.As(err, new(*json.SyntaxError)):
			return fmt.Errorf("%s is %w", file, ErrNotJSON)
		}
		if err != nil {
			return fmt.Errorf("%s: at byte %d: %w", file, d.InputOffset(), err)
		}
	}
}

// eachOf takes the elements of a list whose bracket was read.
func eachOf(d *items, take func(json.RawMessage) error) error {
	for d.more() {
		raw, err := d.value()
		if err != nil {
			return err
		}
		if err := take(raw); err != nil {
			return err
		}
	}
	_, err := d.token()
	return err
}

// eachInObject takes the items of an object whose brace was read.
func eachInObject(d *items, take func(json.RawMessage) error) error {
	fields := make(map[string]json.RawMessage)
	list, bytes := false, int64(0)
	for d.more() {
		key, err := d.token()
		if err != nil {
			return err
		}
		if key == "items" {
			switch t, err := d.token(); {
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
		raw, err := d.value()
		if err != nil {
			return err
		}
		name := key.(string)
		// A field that says little takes as much as the map that it is in.
		if bytes += keptTextBytes + int64(len(name)+len(raw)); bytes > maxItemBytes {
			return fmt.Errorf("an object of more than %d bytes, each of its fields counted as %d more", maxItemBytes, keptTextBytes)
		}
		fields[name] = raw
	}
	if _, err := d.token(); err != nil || list {
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

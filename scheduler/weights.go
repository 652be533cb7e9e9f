package scheduler

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"borg/proto/borgpb"
)

// Weights is what the parts of a score are worth, in points. The policy's part
// has none: fullness gives 0 to fullPoints, and the others are measured against
// it.
type Weights struct {
	// Soft is for each soft constraint that holds.
	Soft int64
	// Machine, Rack and Power are the price of each task of the same job beyond
	// a fair share on the machine, in the rack, in the power domain.
	Machine, Rack, Power int64
	// Rare is the price of a machine on which a constraint of some live job
	// holds and on no other.
	Rare int64
	// Prefer is for a machine with the attribute of Config.Prefer.
	Prefer int64
	// Packages is for a machine that has all packages of the task; for some of
	// them it is less.
	Packages int64
	// Mix is for production where others hold all of the processors, and for
	// others where production does; less where they hold a part.
	Mix int64
}

// DefaultWeights are those that nobody has to think about. One task too many on
// a machine costs as much as the difference between an empty and a full one.
func DefaultWeights() Weights {
	return Weights{Soft: 2048, Machine: 1024, Rack: 256, Power: 128, Rare: 128, Prefer: 1024, Packages: 512, Mix: 128}
}

// maxWeight keeps scores in the bounds of the cache.
const maxWeight = 1 << 13

// weight is one of Weights by its name on a command line.
type weight struct {
	name   string
	points *int64
}

func (w *Weights) list() []weight {
	return []weight{
		{"soft", &w.Soft},
		{"machine", &w.Machine},
		{"rack", &w.Rack},
		{"power", &w.Power},
		{"rare", &w.Rare},
		{"prefer", &w.Prefer},
		{"packages", &w.Packages},
		{"mix", &w.Mix},
	}
}

// Set changes one weight: "rack=512".
func (w *Weights) Set(text string) error {
	name, value, _ := strings.Cut(text, "=")
	for _, k := range w.list() {
		if k.name != name {
			continue
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 || n > maxWeight {
			return fmt.Errorf("weight %q: want %s=POINTS, from 0 to %d", text, name, maxWeight)
		}
		*k.points = n
		return nil
	}
	return fmt.Errorf("weight %q: there is none of that name; want one of %s, as in rack=512", text, WeightWords())
}

// WeightWords lists the weights for people.
func WeightWords() string {
	var names []string
	for _, k := range new(Weights).list() {
		names = append(names, k.name)
	}
	return strings.Join(names, ", ")
}

func (w Weights) validate() error {
	var errs []error
	for _, k := range w.list() {
		if *k.points < 0 || *k.points > maxWeight {
			errs = append(errs, fmt.Errorf("scheduler configuration: the weight %s is %d and must be from 0 to %d", k.name, *k.points, maxWeight))
		}
	}
	return errors.Join(errs...)
}

// Attribute is something that machines have. An empty value means any.
type Attribute struct{ Key, Value string }

// ParseAttribute reads "key=value" or "key".
func ParseAttribute(text string) (Attribute, error) {
	key, value, valued := strings.Cut(text, "=")
	if key == "" || valued && value == "" {
		return Attribute{}, fmt.Errorf("attribute %q: want KEY=VALUE, or KEY for any value", text)
	}
	return Attribute{key, value}, nil
}

// String is what ParseAttribute reads.
func (a Attribute) String() string {
	if a.Value == "" {
		return a.Key
	}
	return a.Key + "=" + a.Value
}

// constraint is the attribute as a task would ask for it; nil for none.
func (a Attribute) constraint() *borgpb.Constraint {
	switch {
	case a.Key == "":
		return nil
	case a.Value == "":
		return &borgpb.Constraint{Key: a.Key, Relation: borgpb.Relation_RELATION_PRESENT, Soft: true}
	}
	return &borgpb.Constraint{Key: a.Key, Relation: borgpb.Relation_RELATION_EQUAL, Value: a.Value, Soft: true}
}

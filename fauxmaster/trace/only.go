package trace

import (
	"fmt"
	"hash/fnv"
	"slices"

	"borg/proto/borgpb"
)

// The most attributes that a machine may have, those of demands included.
const maxAttributesInAll = 64

// only adds a constraint that holds on the machines that suit and on no other. It stands
// for what constraints of ours cannot say: alternatives, long lists, patterns. Those
// machines get an attribute of that meaning; words are the same for the same demand. A
// demand that all machines meet is no constraint.
func (c *Cell) only(task *borgpb.TaskSpec, words string, soft bool, suits func(machine int) bool) {
	key, known := c.demands[words]
	if !known {
		key = c.demand(words, suits)
	}
	if key == "" || slices.ContainsFunc(task.Constraints, func(k *borgpb.Constraint) bool { return k.Key == key && k.Soft == soft }) {
		return
	}
	if len(task.Constraints) >= maxConstraints2011 {
		c.note("demands on machines beyond 32 of one task")
		return
	}
	task.Constraints = append(task.Constraints, &borgpb.Constraint{Key: key, Relation: borgpb.Relation_RELATION_EQUAL, Value: "true", Soft: soft})
}

// demand gives the machines that suit an attribute, and returns its name; none if all do.
func (c *Cell) demand(words string, suits func(machine int) bool) (key string) {
	h := fnv.New64a()
	h.Write([]byte(words))
	var those []int
	for i := range c.Machines {
		if suits(i) {
			those = append(those, i)
		}
	}
	if len(those) < len(c.Machines) || len(those) == 0 {
		key = fmt.Sprintf("only-%016x", h.Sum64())
	}
	if c.demands == nil {
		c.demands = make(map[string]string)
	}
	c.demands[words] = key
	if key == "" {
		return key
	}
	for _, i := range those {
		attributes := c.Machines[i].Spec.Attributes
		if len(attributes) >= maxAttributesInAll && !c.dropUnasked(attributes) {
			c.note("demands that find no room among the 64 attributes of a machine: what asks for them may wait")
			continue
		}
		attributes[key] = "true"
	}
	return key
}

// dropUnasked removes an attribute that no task asks for.
func (c *Cell) dropUnasked(attributes map[string]string) bool {
	keys := sortedKeys(attributes)
	slices.Reverse(keys)
	for _, key := range keys {
		if !c.asked[key] && !slices.Contains([]string{nodeAttribute, "rack", "power"}, key) && len(key) != len("only-0123456789abcdef") {
			delete(attributes, key)
			c.note("labels of machines beyond 60 of one machine that nothing asks for")
			return true
		}
	}
	return false
}

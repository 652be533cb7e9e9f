package trace

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"borg/proto/borgpb"
)

// nomadAttribute is what a target is called among our attributes.
func nomadAttribute(target string) (key string, ok bool) {
	inner, ok := interpolated(target)
	if !ok {
		return "", false
	}
	switch {
	case inner == "node.datacenter":
		return "datacenter", true
	case inner == "node.class":
		return "class", true
	case inner == "node.pool":
		return "pool", true
	case inner == "node.unique.name":
		return nodeAttribute, true
	case strings.HasPrefix(inner, "attr."), strings.HasPrefix(inner, "meta."):
		return inner, true
	}
	return "", false
}

// interpolated returns what stands in ${}.
func interpolated(target string) (inner string, ok bool) {
	inner, ok = strings.CutPrefix(target, "${")
	inner, closed := strings.CutSuffix(inner, "}")
	return inner, ok && closed
}

// value resolves a target on a node. It is known if a node can say it at all, and there if
// this one does.
func (o *nomadNode) value(target string) (v string, there, known bool) {
	inner, ok := interpolated(target)
	if !ok {
		return target, target != "", !strings.Contains(target, "${")
	}
	switch {
	case inner == "node.datacenter":
		return o.Datacenter, true, true
	case inner == "node.class":
		return o.NodeClass, true, true
	case inner == "node.pool":
		return cmp.Or(o.NodePool, "default"), true, true
	case inner == "node.unique.name":
		return o.Name, true, true
	case inner == "node.unique.id":
		return o.ID, true, true
	}
	if key, ok := strings.CutPrefix(inner, "attr."); ok {
		v, there = o.Attributes[key]
		return v, there, true
	}
	if key, ok := strings.CutPrefix(inner, "meta."); ok {
		v, there = o.Meta[key]
		return v, there, true
	}
	return "", false, false
}

// datacenters: any of some is none of the others.
func (n *Nomad) datacenters(spec *borgpb.JobSpec, wanted []string) {
	if len(wanted) == 0 || slices.Contains(wanted, "*") {
		return
	}
	suits := func(d string) bool {
		return slices.ContainsFunc(wanted, func(pattern string) bool {
			ok, err := path.Match(pattern, d)
			return ok && err == nil || pattern == d
		})
	}
	var others []string
	for i := range n.nodes {
		if d := n.nodes[i].Datacenter; !suits(d) && !slices.Contains(others, d) {
			others = append(others, d)
		}
	}
	if len(others) > maxConstraintsOfOne {
		n.cell.only(spec.Task, "datacenters "+wordsOf(wanted), false, func(i int) bool { return suits(n.nodes[i].Datacenter) })
		return
	}
	slices.Sort(others)
	for _, d := range others {
		spec.Task.Constraints = append(spec.Task.Constraints, &borgpb.Constraint{Key: "datacenter", Relation: borgpb.Relation_RELATION_NOT_EQUAL, Value: d})
	}
}

// pool wants the nodes of a pool.
func (n *Nomad) pool(spec *borgpb.JobSpec, pool string) {
	if pool == "all" || pool == "" {
		return
	}
	n.cell.only(spec.Task, "pool "+pool, false, func(i int) bool { return cmp.Or(n.nodes[i].NodePool, "default") == pool })
}

// drivers wants the nodes that can run the tasks of a group. A node that names no driver
// does not say.
func (n *Nomad) drivers(spec *borgpb.JobSpec, g *nomadGroup) {
	for _, t := range g.Tasks {
		if t.Driver == "" {
			continue
		}
		n.cell.only(spec.Task, "driver "+t.Driver, false, func(i int) bool {
			o := &n.nodes[i]
			if d, ok := o.Drivers[t.Driver]; ok {
				return d.Detected && d.Healthy
			}
			if v, ok := o.Attributes["driver."+t.Driver]; ok {
				return v == "1" || v == "true"
			}
			says := len(o.Drivers) > 0
			for key := range o.Attributes {
				says = says || strings.HasPrefix(key, "driver.")
			}
			return !says
		})
	}
}

// hostVolumes wants the nodes that have the volumes of a group.
func (n *Nomad) hostVolumes(spec *borgpb.JobSpec, g *nomadGroup) {
	for _, name := range sortedKeys(g.Volumes) {
		switch v := g.Volumes[name]; v.Type {
		case "host":
			n.cell.only(spec.Task, "host volume "+v.Source, false, func(i int) bool {
				_, ok := n.nodes[i].HostVolumes[v.Source]
				return ok
			})
		default:
			n.cell.note("task groups with volumes of type " + brief(v.Type) + ": where these can be is not known")
		}
	}
}

func (g *nomadGroup) hasStaticPort() bool {
	is := func(o nomadNetwork) bool { return len(o.ReservedPorts) > 0 }
	return slices.ContainsFunc(g.Networks, is) ||
		slices.ContainsFunc(g.Tasks, func(t nomadTask) bool { return t.Resources != nil && slices.ContainsFunc(t.Resources.Networks, is) })
}

var nomadRelations = map[string]borgpb.Relation{
	"": borgpb.Relation_RELATION_EQUAL, "=": borgpb.Relation_RELATION_EQUAL, "==": borgpb.Relation_RELATION_EQUAL, "is": borgpb.Relation_RELATION_EQUAL,
	"!=": borgpb.Relation_RELATION_NOT_EQUAL, "not": borgpb.Relation_RELATION_NOT_EQUAL,
	"<": borgpb.Relation_RELATION_LESS_THAN, "<=": borgpb.Relation_RELATION_LESS_THAN_EQUAL,
	">": borgpb.Relation_RELATION_GREATER_THAN, ">=": borgpb.Relation_RELATION_GREATER_THAN_EQUAL,
	"is_set": borgpb.Relation_RELATION_PRESENT, "is_not_set": borgpb.Relation_RELATION_NOT_PRESENT,
}

// constrain maps constraints; shared are those that bind several groups together.
func (n *Nomad) constrain(spec *borgpb.JobSpec, all []nomadConstraint, shared bool) {
	for _, c := range all {
		switch c.Operand {
		case "distinct_hosts":
			if c.RTarget != "false" {
				spec.MaxPerMachine = 1
			}
		case "distinct_property":
			n.distinct(spec, &c)
		default:
			n.constrainTo(spec, &c)
			continue
		}
		if shared {
			n.cell.note("constraints that keep several task groups of a job apart: here each only from itself")
		}
	}
}

// distinct limits a group per value of an attribute.
func (n *Nomad) distinct(spec *borgpb.JobSpec, c *nomadConstraint) {
	key, ok := nomadAttribute(c.LTarget)
	most, err := strconv.ParseUint(cmp.Or(c.RTarget, "1"), 10, 31)
	switch {
	case !ok || err != nil || most == 0:
		n.cell.note("constraints with distinct_property of what machines do not say")
	case key == "meta.rack":
		spec.MaxPerRack = uint32(most)
	case key == nodeAttribute:
		spec.MaxPerMachine = uint32(most)
	case len(spec.MaxPer) == maxPerValue:
		n.cell.note("constraints with distinct_property of more than 4 attributes of one task group")
	default:
		if spec.MaxPer == nil {
			spec.MaxPer = make(map[string]uint32)
		}
		spec.MaxPer[attributeKey(key)] = uint32(most)
	}
}

// constrainTo adds a constraint of ours where one says the same, and otherwise marks the
// nodes that meet it.
func (n *Nomad) constrainTo(spec *borgpb.JobSpec, c *nomadConstraint) {
	relation, simple := nomadRelations[c.Operand]
	key, ok := nomadAttribute(c.LTarget)
	if strings.HasPrefix(c.Operand, "<") || strings.HasPrefix(c.Operand, ">") {
		simple = simple && n.allWhole(c)
	}
	if simple && ok && !strings.Contains(c.RTarget, "${") && len(spec.Task.Constraints) < maxConstraints2011-maxConstraintsOfOne &&
		len(key) <= maxKeyBytes && len(c.RTarget) <= maxValueBytes {
		spec.Task.Constraints = append(spec.Task.Constraints, &borgpb.Constraint{Key: key, Relation: relation, Value: c.RTarget})
		return
	}
	_, _, knownLeft := n.nodes[0].value(c.LTarget)
	_, _, knownRight := n.nodes[0].value(c.RTarget)
	if !knownLeft || !knownRight || !c.known() {
		n.cell.note("constraints with " + brief(cmp.Or(c.Operand, "=")) + ", or of what machines do not say")
		return
	}
	n.cell.only(spec.Task, "constraint "+wordsOf(c), false, func(i int) bool { return c.holds(&n.nodes[i]) })
}

// allWhole reports whether both sides of a comparison are whole numbers on all nodes that
// have them.
func (n *Nomad) allWhole(c *nomadConstraint) bool {
	if _, err := strconv.ParseInt(c.RTarget, 10, 64); err != nil {
		return false
	}
	return !slices.ContainsFunc(n.nodes, func(o nomadNode) bool {
		v, there, _ := o.value(c.LTarget)
		_, err := strconv.ParseInt(v, 10, 64)
		return there && err != nil
	})
}

// known reports whether holds knows the operand.
func (c *nomadConstraint) known() bool {
	_, simple := nomadRelations[c.Operand]
	if c.Operand == "regexp" {
		_, err := regexp.Compile(c.RTarget)
		return err == nil
	}
	return simple || slices.Contains([]string{"version", "semver", "set_contains", "set_contains_all", "set_contains_any"}, c.Operand)
}

// holds reports whether a node meets a constraint, as Nomad reads it.
func (c *nomadConstraint) holds(o *nomadNode) bool {
	left, there, _ := o.value(c.LTarget)
	right, thereRight, _ := o.value(c.RTarget)
	switch c.Operand {
	case "is_set":
		return there
	case "is_not_set":
		return !there
	case "!=", "not":
		return there != thereRight || left != right
	}
	if !there || !thereRight {
		return false
	}
	switch c.Operand {
	case "", "=", "==", "is":
		return left == right
	case "<", "<=", ">", ">=":
		return ordered(c.Operand, compareValues(left, right))
	case "regexp":
		re, err := regexp.Compile(right)
		return err == nil && re.MatchString(left)
	case "version", "semver":
		return versionMeets(left, right)
	case "set_contains", "set_contains_all", "set_contains_any":
		return containsSet(left, right, c.Operand == "set_contains_any")
	}
	return false
}

// containsSet reports whether the list left has all of the list right, or any.
func containsSet(left, right string, anyOf bool) bool {
	have := strings.Split(left, ",")
	for i := range have {
		have[i] = strings.TrimSpace(have[i])
	}
	for want := range strings.SplitSeq(right, ",") {
		if slices.Contains(have, strings.TrimSpace(want)) == anyOf {
			return anyOf
		}
	}
	return !anyOf
}

// compareValues compares numbers as such, and anything else as text.
func compareValues(a, b string) int {
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	if errX == nil && errY == nil {
		return cmp.Compare(x, y)
	}
	return strings.Compare(a, b)
}

// ordered reports whether a comparison came out as an operator wants it.
func ordered(operator string, is int) bool {
	switch operator {
	case "<":
		return is < 0
	case "<=":
		return is <= 0
	case ">":
		return is > 0
	case ">=":
		return is >= 0
	case "!=":
		return is != 0
	}
	return is == 0
}

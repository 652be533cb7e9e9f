package cell

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/selector"
	"borg/mutant"
	"borg/proto/borgpb"
)

// labelPolicy rules the labels that objects are given: when they are made, updated,
// or labelled. What they have already is never touched, nor is what the cell makes
// of its own accord judged by it.
type labelPolicy struct {
	mark
	// How often it was set; zero: never, and then there are no rules.
	version uint64
	// Must not be changed.
	proto *borgpb.LabelPolicy
	// Rules that concern objects of a kind, in the order of proto; derived.
	of map[borgpb.Labelled][]*borgpb.LabelRule
}

// LabelPolicy is the one that holds, and how often one was set. It must not be
// changed.
func (c *Cell) LabelPolicy() (*borgpb.LabelPolicy, uint64) {
	if c.labelPolicy.proto == nil {
		return &borgpb.LabelPolicy{}, c.labelPolicy.version
	}
	return c.labelPolicy.proto, c.labelPolicy.version
}

func (c *Cell) checkSetLabelPolicy(o *borgpb.SetLabelPolicy) (commit, *borgpb.Refusal) {
	p := &c.labelPolicy
	if o.ExpectVersion != 0 && o.ExpectVersion != p.version {
		return nil, conflict("label policy", o.ExpectVersion, p.version)
	}
	if r := CheckLabelPolicy(o.Policy); r != nil {
		return nil, about("label policy", r)
	}
	return func(res *borgpb.Result) {
		p.version++
		p.set(o.Policy)
		c.dirty(p)
		words := fmt.Sprintf("version %d, %d rules", p.version, len(o.Policy.GetRules()))
		if c.now.reason != "" {
			words += ": " + c.now.reason
		}
		c.emit(Event{Kind: borgpb.EventKind_EVENT_KIND_LABEL_POLICY, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_CELL, Version: p.version, Reason: clip(words, maxReasonBytes)})
		res.Version = p.version
	}, nil
}

func (p *labelPolicy) set(policy *borgpb.LabelPolicy) {
	p.proto, p.of = policy, rulesByKind(policy)
}

func rulesByKind(policy *borgpb.LabelPolicy) map[borgpb.Labelled][]*borgpb.LabelRule {
	of := make(map[borgpb.Labelled][]*borgpb.LabelRule)
	for _, rule := range policy.GetRules() {
		for _, kind := range rule.Kinds {
			of[kind] = append(of[kind], rule)
		}
	}
	return of
}

// CheckLabelPolicy tells what is wrong with a policy: also that it would refuse a
// label that it gives itself.
func CheckLabelPolicy(policy *borgpb.LabelPolicy) *borgpb.Refusal {
	if n := len(policy.GetRules()); n > maxLabelRules {
		return limit("rules", "%d rules; at most %d", n, maxLabelRules)
	}
	if n := proto.Size(policy); n > maxLabelPolicyBytes {
		return limit("rules", "%d bytes; at most %d", n, maxLabelPolicyBytes)
	}
	for i, rule := range policy.GetRules() {
		if r := checkLabelRule(rule); r != nil {
			r.Message = fmt.Sprintf("rule %d (%q): %s", i+1, clip(rule.Key, 64), r.Message)
			return r
		}
	}
	return checkDefaults(policy)
}

func checkLabelRule(rule *borgpb.LabelRule) *borgpb.Refusal {
	if len(rule.Kinds) == 0 {
		return invalid("kinds", "want of which objects it is: job, allocset, machine")
	}
	for i, kind := range rule.Kinds {
		if kindWords[kind] == "" || slices.Contains(rule.Kinds[:i], kind) {
			return invalid("kinds", "want job, allocset and machine, each once")
		}
	}
	gives := rule.Required || rule.DefaultValue != nil
	switch {
	case len(rule.Key) == 0 || len(rule.Key) > maxLabelKeyBytes:
		return invalid("key", "want 1 to %d bytes", maxLabelKeyBytes)
	case !selector.IsKey(rule.Key):
		return oddKey("key", rule.Key)
	case gives && strings.ContainsAny(rule.Key, "*?"):
		return invalid("key", "a label that is required or given has one name; leave out * and ?")
	case rule.Forbidden && (gives || len(rule.Values) > 0):
		return invalid("forbidden", "a label that is forbidden has no values, and is neither required nor given; leave out one or the other")
	case !rule.Forbidden && !gives && len(rule.Values) == 0:
		return invalid("rules", "it says nothing; want required, forbidden, default or values")
	case len(rule.Values) > maxLabelRuleValues:
		return limit("values", "%d values; at most %d; a pattern such as ads-* stands for many", len(rule.Values), maxLabelRuleValues)
	case len(rule.GetDefaultValue()) > maxLabelValueBytes:
		return invalid("default", "longer than %d bytes", maxLabelValueBytes)
	}
	for _, v := range rule.Values {
		if len(v) > maxLabelValueBytes {
			return invalid("values", "one is longer than %d bytes", maxLabelValueBytes)
		}
	}
	return nil
}

// checkDefaults wants the labels that a policy gives allowed by all of its rules, one
// of each name, and no more of them than an object may have.
func checkDefaults(policy *borgpb.LabelPolicy) *borgpb.Refusal {
	p := labelPolicy{of: rulesByKind(policy)}
	for _, kind := range labelledKinds {
		given := make(map[string]string)
		for _, rule := range p.of[kind] {
			if rule.DefaultValue == nil {
				continue
			}
			if v, twice := given[rule.Key]; twice && v != *rule.DefaultValue {
				return invalid("default", "each %s would be given both %s=%s and %s=%s", kindWords[kind], rule.Key, v, rule.Key, *rule.DefaultValue)
			}
			given[rule.Key] = *rule.DefaultValue
		}
		if len(given) > maxLabels {
			return limit("default", "each %s would be given %d labels; at most %d", kindWords[kind], len(given), maxLabels)
		}
		for _, k := range sortedKeys(given) {
			if broken := p.breaks(kind, k, given[k]); broken != nil {
				return invalid("default", "each %s would be given %s=%s, and another rule: %s", kindWords[kind], k, given[k], ruleWords(kind, broken, k, given[k]))
			}
		}
	}
	return nil
}

var labelledKinds = []borgpb.Labelled{borgpb.Labelled_LABELLED_JOB, borgpb.Labelled_LABELLED_ALLOC_SET, borgpb.Labelled_LABELLED_MACHINE}

var kindWords = map[borgpb.Labelled]string{
	borgpb.Labelled_LABELLED_JOB: "job", borgpb.Labelled_LABELLED_ALLOC_SET: "allocset", borgpb.Labelled_LABELLED_MACHINE: "machine",
}

// fill adds the labels that the policy gives, to a copy.
func (p *labelPolicy) fill(kind borgpb.Labelled, labels map[string]string) map[string]string {
	return FillLabels(p.of[kind], labels)
}

// FillLabels adds the labels that rules give, to a copy, if there are any.
func FillLabels(rules []*borgpb.LabelRule, labels map[string]string) map[string]string {
	own := false
	for _, rule := range rules {
		if _, has := labels[rule.Key]; has || rule.DefaultValue == nil || mutant.Planted(mutant.LabelNotGiven) {
			continue
		}
		if !own {
			if labels = maps.Clone(labels); labels == nil {
				labels = make(map[string]string)
			}
			own = true
		}
		labels[rule.Key] = *rule.DefaultValue
	}
	return labels
}

// breaks returns the first rule that a label breaks by being there.
func (p *labelPolicy) breaks(kind borgpb.Labelled, key, value string) *borgpb.LabelRule {
	for _, rule := range p.of[kind] {
		if !globs(rule.Key, key) || mutant.Planted(mutant.LabelNotJudged) {
			continue
		}
		if rule.Forbidden || len(rule.Values) > 0 && !slices.ContainsFunc(rule.Values, func(v string) bool { return globs(v, value) }) {
			return rule
		}
	}
	return nil
}

// judge refuses labels of an object that break a rule.
func (p *labelPolicy) judge(kind borgpb.Labelled, labels map[string]string) *borgpb.Refusal {
	if len(p.of[kind]) == 0 {
		return nil
	}
	for _, k := range sortedKeys(labels) {
		if rule := p.breaks(kind, k, labels[k]); rule != nil {
			return invalid("labels", "%s", ruleWords(kind, rule, k, labels[k]))
		}
	}
	for _, rule := range p.of[kind] {
		if _, has := labels[rule.Key]; rule.Required && !has {
			return invalid("labels", "%s", missingWords(kind, rule))
		}
	}
	return nil
}

// judgeChange judges what a change does and nothing else: an object that broke the
// policy before can still be given another label.
func (p *labelPolicy) judgeChange(kind borgpb.Labelled, labels map[string]string, o *borgpb.SetLabels) *borgpb.Refusal {
	for _, k := range sortedKeys(o.SetLabels) {
		if rule := p.breaks(kind, k, o.SetLabels[k]); rule != nil {
			return invalid("labels", "%s", ruleWords(kind, rule, k, o.SetLabels[k]))
		}
	}
	for _, rule := range p.of[kind] {
		if _, has := labels[rule.Key]; has || !slices.Contains(o.RemoveLabels, rule.Key) {
			continue
		}
		switch {
		case rule.DefaultValue != nil:
			labels[rule.Key] = *rule.DefaultValue
		case rule.Required:
			return invalid("labels", "%s", missingWords(kind, rule))
		}
	}
	return nil
}

// ruleWords says how a label breaks a rule, and what to type instead.
func ruleWords(kind borgpb.Labelled, rule *borgpb.LabelRule, key, value string) string {
	key = clip(key, 64)
	if rule.Forbidden {
		words := fmt.Sprintf("the policy of this cell forbids the label %s of a %s", key, kindWords[kind])
		if rule.Key != key {
			words += " (" + rule.Key + ")"
		}
		return words + "; leave it out"
	}
	return fmt.Sprintf("the policy of this cell does not allow %s=%s of a %s; write %s", key, clip(value, 64), kindWords[kind], valueWords(key, rule))
}

func missingWords(kind borgpb.Labelled, rule *borgpb.LabelRule) string {
	return fmt.Sprintf("the policy of this cell requires the label %s of each %s; write %s", rule.Key, kindWords[kind], valueWords(rule.Key, rule))
}

// valueWords is what to write: "team=ads, team=search or team=x-*".
func valueWords(key string, rule *borgpb.LabelRule) string {
	const some = 8
	var list []string
	for _, v := range rule.Values[:min(len(rule.Values), some)] {
		list = append(list, key+"="+v)
	}
	switch n := len(list); {
	case n == 0:
		return key + "=VALUE"
	case len(rule.Values) > some:
		return strings.Join(list, ", ") + ", ..."
	case n == 1:
		return list[0]
	default:
		return strings.Join(list[:n-1], ", ") + " or " + list[n-1]
	}
}

// globs tells whether a pattern stands for a text: * for any text, ? for one
// character. A text of n bytes and a pattern of m take at most n*m steps.
func globs(pattern, text string) bool {
	p, t := 0, 0
	star, from := -1, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, t
			p++
		case p < len(pattern) && pattern[p] == '?':
			p++
			t += runeBytes(text[t:])
		case p < len(pattern) && pattern[p] == text[t]:
			p++
			t++
		case star >= 0:
			// The last * stands for one character more.
			from += runeBytes(text[from:])
			p, t = star+1, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

func runeBytes(text string) int {
	for i := range text {
		if i > 0 {
			return i
		}
	}
	return len(text)
}

// LabelBreach is an object that would not be let in with the labels that it has.
type LabelBreach struct {
	Kind    borgpb.Labelled
	Object  string
	Message string
}

// LabelCheck looks, piece by piece, for the objects that a policy would not let in as they are:
// jobs and alloc sets that are not dead, by key, then machines.
type LabelCheck struct {
	policy *labelPolicy
	// Objects that it looks at at a time.
	most int
	// What it looks at, and the object that was the last one.
	kind    borgpb.Labelled
	after   JobKey
	machine string
}

// labelRulesLooked is how many rules a LabelCheck holds objects against at a time.
const labelRulesLooked = 100_000

// NewLabelCheck begins to look.
func NewLabelCheck(policy *borgpb.LabelPolicy) *LabelCheck {
	x := &LabelCheck{policy: &labelPolicy{of: rulesByKind(policy)}, kind: borgpb.Labelled_LABELLED_JOB}
	rules := 0
	for _, of := range x.policy.of {
		rules = max(rules, len(of))
	}
	x.most = labelRulesLooked / (rules + 5)
	return x
}

// Next calls f with what it finds among the next objects of a cell, and reports whether there
// are more to look at.
func (x *LabelCheck) Next(c *Cell, f func(LabelBreach)) (more bool) {
	left := x.most
	look := func(object string, labels map[string]string) {
		labels = x.policy.fill(x.kind, labels)
		if r := x.policy.judge(x.kind, labels); r != nil {
			f(LabelBreach{x.kind, object, r.Message})
		}
	}
	takes := func(key JobKey) bool {
		left--
		if left >= 0 {
			x.after = key
		}
		return left >= 0
	}
	if x.kind == borgpb.Labelled_LABELLED_JOB {
		for j := range c.JobsAfter(x.after) {
			if !takes(j.key) {
				return true
			}
			if j.deathSeq == 0 {
				look(j.key.String(), j.labels)
			}
		}
		x.kind, x.after = borgpb.Labelled_LABELLED_ALLOC_SET, JobKey{}
	}
	if x.kind == borgpb.Labelled_LABELLED_ALLOC_SET {
		for s := range c.AllocSetsAfter(x.after) {
			if !takes(s.key) {
				return true
			}
			if s.deathSeq == 0 {
				look(s.key.String(), s.labels)
			}
		}
		x.kind, x.after = borgpb.Labelled_LABELLED_MACHINE, JobKey{}
	}
	for m := range c.MachinesAfter(x.machine) {
		if left--; left < 0 {
			return true
		}
		x.machine = m.name
		look(m.name, m.labels)
	}
	return false
}

// check holds the invariants of the policy.
func (p *labelPolicy) check(format uint32) error {
	n := 0
	for _, rules := range p.of {
		n += len(rules)
	}
	want := 0
	for _, rule := range p.proto.GetRules() {
		want += len(rule.Kinds)
	}
	if r := CheckLabelPolicy(p.proto); r != nil || n != want || p.version != 0 && format < FormatLabels || p.version == 0 && p.proto != nil {
		return fmt.Errorf("the label policy of version %d has %d rules by kind, not %d, or is odd: %s", p.version, n, want, r.GetMessage())
	}
	return nil
}

func (p *labelPolicy) appendKey(b []byte) []byte { return append(b, kindLabelPolicy) }
func (p *labelPolicy) exists() bool              { return p.version != 0 }

func (p *labelPolicy) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.uint(p.version)
	e.uint(uint64(len(p.proto.GetRules())))
	for _, rule := range p.proto.GetRules() {
		e.rule(rule)
	}
	return e.b
}

func (e *encoder) rule(rule *borgpb.LabelRule) {
	e.uint(uint64(len(rule.Kinds)))
	for _, kind := range rule.Kinds {
		e.byte(byte(kind))
	}
	e.str(rule.Key)
	e.bool(rule.Required)
	e.bool(rule.Forbidden)
	e.bool(rule.DefaultValue != nil)
	if rule.DefaultValue != nil {
		e.str(*rule.DefaultValue)
	}
	e.uint(uint64(len(rule.Values)))
	for _, v := range rule.Values {
		e.str(v)
	}
}

func (l *loader) labelPolicy(d *decoder) error {
	version, policy := d.uint(), &borgpb.LabelPolicy{}
	for range d.count() {
		policy.Rules = append(policy.Rules, d.rule())
	}
	if err := d.done(); err != nil {
		return err
	}
	if l.c.format < FormatLabels || version == 0 {
		return errOdd
	}
	if r := CheckLabelPolicy(policy); r != nil {
		return errors.New(r.Message)
	}
	l.c.labelPolicy.version = version
	l.c.labelPolicy.set(policy)
	return nil
}

func (d *decoder) rule() *borgpb.LabelRule {
	rule := &borgpb.LabelRule{}
	for range d.count() {
		rule.Kinds = append(rule.Kinds, borgpb.Labelled(d.byte()))
	}
	rule.Key, rule.Required, rule.Forbidden = d.str(), d.bool(), d.bool()
	if d.bool() {
		rule.DefaultValue = new(d.str())
	}
	for range d.count() {
		rule.Values = append(rule.Values, d.str())
	}
	return rule
}

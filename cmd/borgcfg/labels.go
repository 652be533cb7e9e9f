package main

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"

	ucli "github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	borgcell "borg/borgmaster/cell"
	"borg/borgmaster/client"
	"borg/cfg"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// labelledWords are the kinds of objects that have labels, as people type them.
var labelledWords = []struct {
	word string
	kind borgpb.Labelled
}{
	{"job", borgpb.Labelled_LABELLED_JOB}, {"allocset", borgpb.Labelled_LABELLED_ALLOC_SET}, {"machine", borgpb.Labelled_LABELLED_MACHINE},
}

// labelled reads the kind of an object.
func labelled(word string) (borgpb.Labelled, error) {
	var words []string
	for _, k := range labelledWords {
		if k.word == word {
			return k.kind, nil
		}
		words = append(words, k.word)
	}
	e := cli.Errorf(cli.Usage, "%q has no labels of its own: want job, allocset or machine", word)
	switch near := cli.Nearest(word, words); {
	case word == "task" || word == "alloc":
		return 0, e.Hint("tasks have the labels of their job, and allocs those of their set")
	case near != "":
		return 0, e.Hint("did you mean %s?", near)
	}
	return 0, e
}

func labelledWord(kind borgpb.Labelled) string {
	for _, k := range labelledWords {
		if k.kind == kind {
			return k.word
		}
	}
	return "?"
}

func labelCommands(con *console) []*ucli.Command {
	ifVersion := func() ucli.Flag {
		return &ucli.Uint64Flag{Name: "if-version", Usage: "only if the object has this `VERSION`"}
	}
	const args = "job|allocset|machine NAME KEY=VALUE|KEY-..."
	return []*ucli.Command{
		command(con, "label", "change labels of what there is, and nothing else: key=value sets, key- removes", args, 3, -1, setLabels, reasonFlag(), ifVersion()),
		command(con, "annotate", "change annotations of what there is, and nothing else: key=value sets, key- removes", args, 3, -1, setAnnotations, reasonFlag(), ifVersion()),
	}
}

func policyCommands(con *console) *ucli.Command {
	return group("policy", "what is ruled in the cell",
		group("labels", "which labels objects must have, may not have, and are given",
			command(con, "show", "print the rules for labels, as set takes them", "", 0, 0, labelPolicyShow, outputFlag()),
			command(con, "set", "put the rules of a file in the place of those that hold; -: standard input", "FILE", 1, 1, labelPolicySet, reasonFlag(),
				&ucli.Uint64Flag{Name: "if-version", Usage: "only if the rules that hold have this `VERSION`"}),
			command(con, "check", "tell which objects would not be let in by the rules, or by those of a file; exit code 6: there are some", "[FILE]", 0, 1, labelPolicyCheck, outputFlag())),
		preemptionCommands(con), visibilityCommands(con), shareGroupCommands(con))
}

// changes reads KEY=VALUE and KEY-.
func changes(args []string) (set map[string]string, remove []string, err error) {
	set = make(map[string]string)
	for _, arg := range args {
		if key, value, ok := strings.Cut(arg, "="); ok && key != "" {
			if _, twice := set[key]; twice {
				return nil, nil, cli.Errorf(cli.Usage, "%s is given twice", key)
			}
			set[key] = value
		} else if key, ok := strings.CutSuffix(arg, "-"); ok && key != "" && !strings.Contains(key, "=") {
			remove = append(remove, key)
		} else {
			return nil, nil, cli.Errorf(cli.Usage, "%q is neither KEY=VALUE nor KEY-", arg).Hint("tier=web sets a label, tier- removes it")
		}
	}
	return set, remove, nil
}

func setLabels(s *session) error {
	set, remove, err := changes(s.args[2:])
	if err != nil {
		return err
	}
	return s.relabel(&borgpb.SetLabels{SetLabels: set, RemoveLabels: remove}, "labels")
}

func setAnnotations(s *session) error {
	set, remove, err := changes(s.args[2:])
	if err != nil {
		return err
	}
	return s.relabel(&borgpb.SetLabels{SetAnnotations: set, RemoveAnnotations: remove}, "annotations")
}

// relabel changes the object that is named by the first two arguments.
func (s *session) relabel(o *borgpb.SetLabels, what string) error {
	kind, err := labelled(s.args[0])
	if err != nil {
		return err
	}
	o.Kind, o.Name, o.ExpectVersion = kind, s.args[1], s.flag.Uint64("if-version")
	if kind != borgpb.Labelled_LABELLED_MACHINE {
		n, err := s.job(s.args[1])
		if err != nil {
			return err
		}
		o.User, o.Name = n.user, n.name
	}
	name := o.Name
	if o.User != "" {
		name = s.short(o.User, o.Name)
	}
	if err := s.hasRemoved(s.args[0]+" "+name, o); err != nil {
		return err
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	_, err = m.Mutate(s.ctx, s.op(&borgpb.Op{Op: &borgpb.Op_SetLabels{SetLabels: o}}))
	var refused *client.RefusedError
	switch {
	case errors.As(err, &refused) && refused.Refusal.Kind == borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND && kind == borgpb.Labelled_LABELLED_MACHINE:
		return s.noSuchMachine(o.Name)
	case errors.As(err, &refused) && refused.Refusal.Kind == borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND && kind == borgpb.Labelled_LABELLED_JOB:
		return s.noSuchJob(jobName{o.User, o.Name})
	case err != nil:
		return err
	}
	s.say("%s %s: %s changed: %s", s.args[0], name, what, changedWords(s.args[2:]))
	s.tellShare(o.SetLabels)
	return nil
}

// A file of rules for labels.
type ruleFile struct {
	Rules []ruleEntry `yaml:"rules"`
}

type ruleEntry struct {
	Kinds     []string `yaml:"kinds,flow"`
	Key       string   `yaml:"key"`
	Required  bool     `yaml:"required,omitempty"`
	Forbidden bool     `yaml:"forbidden,omitempty"`
	Default   *string  `yaml:"default,omitempty"`
	Values    []string `yaml:"values,omitempty,flow"`
}

// maxPolicyBytes is more than any policy that the cell takes.
const maxPolicyBytes = 1 << 20

// readPolicy reads a file of rules.
func (s *session) readPolicy(path string) (*borgpb.LabelPolicy, error) {
	data, err := s.read(path, input{"the rules", maxPolicyBytes, "the cell takes far fewer rules: docs/limits.md"})
	if err != nil {
		return nil, err
	}
	var file ruleFile
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, cli.Errorf(cli.Invalid, "%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: ")).Hint("such as the rules that hold: borgcfg policy labels show")
	}
	policy := &borgpb.LabelPolicy{}
	for i, e := range file.Rules {
		rule := &borgpb.LabelRule{Key: e.Key, Required: e.Required, Forbidden: e.Forbidden, DefaultValue: e.Default, Values: e.Values}
		for _, word := range e.Kinds {
			kind, err := labelled(word)
			if err != nil {
				return nil, cli.Errorf(cli.Invalid, "%s: rule %d (%q): %w", path, i+1, e.Key, err)
			}
			rule.Kinds = append(rule.Kinds, kind)
		}
		policy.Rules = append(policy.Rules, rule)
	}
	if r := borgcell.CheckLabelPolicy(policy); r != nil {
		return nil, cli.Errorf(cli.Invalid, "%s: %s: %s", path, r.Field, r.Message)
	}
	return policy, nil
}

func labelPolicySet(s *session) error {
	policy, err := s.readPolicy(s.args[0])
	if err != nil {
		return err
	}
	o := &borgpb.SetLabelPolicy{Policy: policy, ExpectVersion: s.flag.Uint64("if-version")}
	if err := s.change(&borgpb.Op{Op: &borgpb.Op_SetLabelPolicy{SetLabelPolicy: o}}, "policy of labels: %s", plural(len(policy.Rules), "rule")); err != nil {
		return err
	}
	if resp, err := s.client.GetLabelPolicy(s.ctx, &borgrpc.GetLabelPolicyRequest{Check: true}); err == nil && resp.Breaking > 0 {
		s.progress("what is there stays as it is; %s would not be let in: borgcfg policy labels check", plural(resp.Breaking, "object"))
	}
	return nil
}

func labelPolicyShow(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.GetLabelPolicy(s.ctx, &borgrpc.GetLabelPolicyRequest{})
	if err != nil {
		return err
	}
	if s.out.machine() {
		return s.out.one(resp)
	}
	if len(resp.Policy.GetRules()) == 0 {
		s.progress("no rules: all labels are free")
		return nil
	}
	file := ruleFile{}
	for _, rule := range resp.Policy.GetRules() {
		e := ruleEntry{Key: rule.Key, Required: rule.Required, Forbidden: rule.Forbidden, Default: rule.DefaultValue, Values: rule.Values}
		for _, kind := range rule.Kinds {
			e.Kinds = append(e.Kinds, labelledWord(kind))
		}
		file.Rules = append(file.Rules, e)
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(file); err != nil {
		return cli.Errorf(cli.Failed, "print the rules: %w", err)
	}
	s.say("# version %d", resp.Version)
	_, err = s.stdout.Write(visibleYAML(out.Bytes()))
	return err
}

func labelPolicyCheck(s *session) error {
	req := &borgrpc.GetLabelPolicyRequest{Check: true}
	if len(s.args) == 1 {
		policy, err := s.readPolicy(s.args[0])
		if err != nil {
			return err
		}
		req.Policy = policy
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.GetLabelPolicy(s.ctx, req)
	if err != nil {
		return err
	}
	switch {
	case s.out.machine():
		err = list(s.out, resp.Breaches)
	case s.out.format == "name":
		var names []string
		for _, b := range resp.Breaches {
			names = append(names, labelledWord(b.Kind)+" "+b.Object)
		}
		err = s.out.names(names)
	case len(resp.Breaches) > 0:
		var t table
		t.head("KIND", "OBJECT", "BREAKS")
		for _, b := range resp.Breaches {
			t.add(labelledWord(b.Kind), b.Object, b.Message)
		}
		err = t.write(s.out, "")
	default:
		s.progress("no object breaks them")
	}
	if err == nil && resp.Breaking > 0 {
		return cli.Errorf(cli.Refused, "%s would not be let in with the labels that they have", plural(resp.Breaking, "object")).
			Hint("they stay as they are; give them others: borgcfg label job NAME KEY=VALUE")
	}
	return err
}

// fillLabels adds to what files say the labels that the cell gives, so that these are
// no difference.
func (s *session) fillLabels(m *client.Client, objects []declared) error {
	resp, err := m.GetLabelPolicy(s.ctx, &borgrpc.GetLabelPolicyRequest{})
	if err != nil {
		return err
	}
	for _, d := range objects {
		kind := borgpb.Labelled_LABELLED_JOB
		if d.Kind == cfg.KindAllocSet {
			kind = borgpb.Labelled_LABELLED_ALLOC_SET
		}
		d.Labels = borgcell.FillLabels(rulesOf(resp.Policy, kind), d.Labels)
	}
	return nil
}

func rulesOf(policy *borgpb.LabelPolicy, kind borgpb.Labelled) []*borgpb.LabelRule {
	return slices.DeleteFunc(slices.Clone(policy.GetRules()), func(rule *borgpb.LabelRule) bool { return !slices.Contains(rule.Kinds, kind) })
}

// relabelTo is the mutation that gives an alloc set the labels of a file.
func (d declared) relabelTo(meta *borgpb.Meta) *borgpb.Op {
	missing := func(have, want map[string]string) (keys []string) {
		for k := range have {
			if _, ok := want[k]; !ok {
				keys = append(keys, k)
			}
		}
		slices.Sort(keys)
		return keys
	}
	return &borgpb.Op{ConfigHash: d.file.Hash, Op: &borgpb.Op_SetLabels{SetLabels: &borgpb.SetLabels{
		Kind: borgpb.Labelled_LABELLED_ALLOC_SET, User: d.User, Name: d.Name,
		SetLabels: d.Labels, RemoveLabels: missing(meta.GetLabels(), d.Labels),
		SetAnnotations: d.Annotations, RemoveAnnotations: missing(meta.GetAnnotations(), d.Annotations),
	}}}
}

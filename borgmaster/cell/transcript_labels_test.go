package cell

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/datadriven"

	"borg/proto/borgpb"
)

// words reads NAME=(KEY:VALUE,...).
func (s *script) words(name string) map[string]string {
	var m map[string]string
	for _, kv := range s.list(name) {
		if m == nil {
			m = make(map[string]string)
		}
		k, v, _ := strings.Cut(kv, ":")
		m[k] = v
	}
	return m
}

func kindOf(word string) borgpb.Labelled {
	for kind, w := range kindWords {
		if w == word {
			return kind
		}
	}
	return borgpb.Labelled_LABELLED_UNSPECIFIED
}

// label reads: label job|allocset|machine NAME set=(K:V) remove=K annotate=(K:V)
// unannotate=K.
func (s *script) label() *borgpb.Op {
	o := &borgpb.SetLabels{
		Kind: kindOf(s.first(0)), Name: s.first(1), ExpectVersion: uint64(s.num("expect", 0)), SetLabels: s.words("set"), RemoveLabels: s.list("remove"),
		SetAnnotations: s.words("annotate"), RemoveAnnotations: s.list("unannotate"),
	}
	if o.Kind != borgpb.Labelled_LABELLED_MACHINE {
		o.User, o.Name, _ = strings.Cut(o.Name, "/")
	}
	return &borgpb.Op{Op: &borgpb.Op_SetLabels{SetLabels: o}}
}

// visibility reads: private or open, and NAME=(USERS) for each group.
func (s *script) visibility() *borgpb.Op {
	o := &borgpb.SetVisibility{Policy: &borgpb.Visibility{}, ExpectVersion: uint64(s.num("expect", 0))}
	for _, a := range s.d.CmdArgs {
		switch {
		case a.Key == "private":
			o.Policy.Private = true
		case a.Key == "open", a.Key == "expect", a.Key == "as", a.Key == "reason":
		default:
			o.Policy.Groups = append(o.Policy.Groups, &borgpb.ShareGroup{Name: a.Key, Users: a.Vals})
		}
	}
	return &borgpb.Op{Reason: s.arg("reason", ""), Op: &borgpb.Op_SetVisibility{SetVisibility: o}}
}

// labelPolicy reads one rule a line: KEY [required] [forbidden] [default=VALUE]
// kinds=(...) [values=(...)].
func (s *script) labelPolicy() *borgpb.LabelPolicy {
	p, whole := &borgpb.LabelPolicy{}, s.d
	defer func() { s.d = whole }()
	for line := range strings.Lines(whole.Input) {
		key, args, err := datadriven.ParseLine(line)
		if err != nil {
			whole.Fatalf(s.t, "%v", err)
		}
		s.d = &datadriven.TestData{Pos: whole.Pos, Cmd: key, CmdArgs: args}
		rule := &borgpb.LabelRule{Key: key, Required: s.has("required"), Forbidden: s.has("forbidden"), Values: s.list("values")}
		if s.has("default") {
			rule.DefaultValue = new(s.arg("default", ""))
		}
		for _, w := range s.list("kinds") {
			rule.Kinds = append(rule.Kinds, kindOf(w))
		}
		p.Rules = append(p.Rules, rule)
	}
	return p
}

func (s *script) showLabels(b *strings.Builder) {
	if s.first(0) == "breaches" {
		policy, version := s.c.LabelPolicy()
		fmt.Fprintf(b, "policy version %d of %d rules\n", version, len(policy.Rules))
		check := NewLabelCheck(policy)
		for check.Next(s.c, func(x LabelBreach) { fmt.Fprintf(b, "%s %s: %s\n", kindWords[x.Kind], x.Object, x.Message) }) {
		}
		return
	}
	j := s.c.Job(mustKey(s.first(1)))
	for _, m := range []map[string]string{j.Labels(), j.Annotations()} {
		var list []string
		for k, v := range m {
			list = append(list, k+"="+v)
		}
		slices.Sort(list)
		fmt.Fprintf(b, "%q\n", list)
	}
}

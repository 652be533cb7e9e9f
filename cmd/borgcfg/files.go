package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/cfg"
	"borg/cli"
	"borg/proto/borgpb"
)

// evaluate evaluates a job file with the command's parameters.
func (s *session) evaluate(path string) (*cfg.File, error) {
	params, err := pairs("--set", s.flag.StringSlice("set"))
	if err != nil {
		return nil, err
	}
	who, err := s.user()
	if err != nil {
		return nil, err
	}
	f, err := cfg.Evaluate(path, cfg.Options{
		Params: params, User: who, Root: s.flag.String("root"),
		Print: func(pos cfg.Position, text string) { s.progress("%s: %s", pos, text) },
	})
	if err == nil {
		for _, w := range f.Warnings {
			s.progress("warning: %s", w)
		}
	}
	return f, err
}

// declared is an object of a job file with its file.
type declared struct {
	*cfg.Object
	file *cfg.File
}

// evaluateAll evaluates all files before anything is done with any of them.
func (s *session) evaluateAll(paths []string) ([]declared, error) {
	var out []declared
	first := make(map[string]string)
	if err := allThere(paths); err != nil {
		return nil, err
	}
	for _, path := range paths {
		f, err := s.evaluate(path)
		if err != nil {
			return nil, err
		}
		for _, o := range f.Objects {
			if other, ok := first[o.Key()]; ok {
				return nil, cli.Errorf(cli.Invalid, "%s: %s is declared in %s too", o.Pos(), o.Key(), other)
			}
			first[o.Key()] = path
			out = append(out, declared{o, f})
		}
	}
	return inOrder(out)
}

// allThere names all files of several that are not there; of one alone evaluation says more.
func allThere(paths []string) error {
	var missing []string
	for _, path := range paths {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, path)
		}
	}
	if len(missing) < 2 {
		return nil
	}
	return cli.Errorf(cli.Invalid, "there are no files %s", strings.Join(missing, ", "))
}

// evalFile prints what a file says, as a file of the same language-neutral
// form that up takes.
func evalFile(s *session) error {
	f, err := s.evaluate(s.args[0])
	if err != nil {
		return err
	}
	for _, o := range f.Objects {
		if fault := o.Lacks(); fault != nil {
			s.progress("warning: unless the cell fills it in for user %s (borgcfg quota bounds --default): %s", o.User, fault)
		}
	}
	if path := s.flag.String("explain"); path != "" {
		return s.explainValue(f, path)
	}
	switch s.out.format {
	case "name":
		var names []string
		for _, o := range f.Objects {
			names = append(names, o.Key())
		}
		return s.out.names(names)
	case "table", "wide":
		if s.flag.String("output") == "" {
			break
		}
		return s.evalTable(f)
	}
	b, err := f.JSON()
	if err != nil {
		return err
	}
	out := s.out
	if out.format == "table" {
		out.format = "yaml"
	}
	return out.raw(b)
}

func (s *session) evalTable(f *cfg.File) error {
	var t table
	t.head("OBJECT", "KIND", "COUNT", "PRIORITY", "BAND", "CPU", "MEM", "DECLARED")
	for _, o := range f.Objects {
		count, priority, kind := o.AllocSet.GetAllocs(), o.AllocSet.GetPriority(), o.Kind.String()
		r := o.AllocSet.GetResources()
		if o.Kind == cfg.KindJob {
			count, priority, kind, r = o.Job.Tasks, o.Job.Priority, word(o.Job.Kind), o.Job.Task.GetResources()
		}
		t.add(o.Key(), kind, count, priority, cfg.BandOf(priority), cpuText(r.GetCpuMilli()), bytesText(r.GetMemBytes()), o.Pos())
	}
	return t.write(s.out, "")
}

// explainValue tells where values come from.
func (s *session) explainValue(f *cfg.File, path string) error {
	found, err := f.Explain(path)
	if err != nil {
		return cli.Errorf(cli.Usage, "--explain %s: %w", path, err)
	}
	var t table
	for _, e := range found {
		t.add(e.Path, "= "+e.Value, e.Origin)
	}
	return t.write(s.out, "")
}

// op is the mutation that creates the object.
func (d declared) submit() (*borgpb.Op, error) {
	spec, err := d.SpecBytes()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.Key(), err)
	}
	op := &borgpb.Op{ConfigHash: d.file.Hash}
	if d.Kind == cfg.KindAllocSet {
		op.Op = &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{
			User: d.User, Name: d.Name, Labels: d.Labels, Annotations: d.Annotations, Spec: spec}}
		return op, nil
	}
	op.Op = &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{
		User: d.User, Name: d.Name, Labels: d.Labels, Annotations: d.Annotations, Spec: spec}}
	return op, nil
}

// same tells whether the cell holds just this.
func same(o *cfg.Object, meta *borgpb.Meta, spec proto.Message) bool {
	return proto.Equal(o.Spec(), spec) && sameMap(o.Labels, meta.GetLabels()) && sameMap(o.Annotations, meta.GetAnnotations())
}

func sameMap(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

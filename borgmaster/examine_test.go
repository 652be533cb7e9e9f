package borgmaster

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"borg/borgmaster/linkshard"
	"borg/pages"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestFindingsNameACommand: what is found says what to type, or where to look on the page.
func TestFindingsNameACommand(t *testing.T) {
	command := regexp.MustCompile(`borgcfg [a-z]|borgmaster [a-z]|borglet [a-z]|timedatectl|du -sh|^below: `)
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, path := range sources {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || f.Sel.Name != "Found" || len(call.Args) < 3 {
				return true
			}
			var words strings.Builder
			ast.Inspect(call.Args[1], func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					words.WriteString(strings.Trim(lit.Value, `"`))
				}
				return true
			})
			if x, ok := f.X.(*ast.Ident); ok && x.Name == "linkshard" {
				return true
			}
			found++
			if _, isVariable := call.Args[1].(*ast.Ident); !isVariable && !command.MatchString(words.String()) {
				t.Errorf("%s: a finding says %q, which is nothing to type", path, words.String())
			}
			return true
		})
	}
	if found < 15 {
		t.Errorf("only %d findings are looked at", found)
	}
}

// TestSlowPollsAreTold: a replica that keeps to a longer interval says so, and one that
// does not says nothing.
func TestSlowPollsAreTold(t *testing.T) {
	for _, x := range []struct {
		interval, late time.Duration
		want           []string
		lacks          string
	}{
		{2 * time.Second, 150 * time.Millisecond, nil, ""},
		{2500 * time.Millisecond, 150 * time.Millisecond, nil, ""},
		{9 * time.Second, 150 * time.Millisecond, []string{"short of processor", "400 machines", "every 9 s", "every 2 s", "150 ms late"}, "moment ago"},
		{9 * time.Second, 0, []string{"short of processor", "every 2 s."}, "late"},
	} {
		l := &look{shard: linkshard.Stats{Share: 400, Interval: x.interval, RestInterval: 2 * time.Second, Late: x.late}}
		var v pages.Verdict
		l.judgePolls(&v)
		if (len(v.Findings) > 0) != (x.want != nil) {
			t.Fatalf("with an interval of %v: %v", x.interval, v.Findings)
		}
		if x.want != nil && x.lacks != "" && strings.Contains(v.Findings[0].Text, x.lacks) {
			t.Errorf("with an interval of %v: %q has %q", x.interval, v.Findings[0].Text, x.lacks)
		}
		for _, words := range x.want {
			if !strings.Contains(v.Findings[0].Text, words) {
				t.Errorf("with an interval of %v: %q lacks %q", x.interval, v.Findings[0].Text, words)
			}
		}
	}
}

// TestNearQuota holds what doctor says of quotas, of each amount that is 90 % or more.
func TestNearQuota(t *testing.T) {
	const all = 1 << 62
	for _, c := range []struct {
		used, limit *borgpb.Resources
		want        string
	}{
		{nil, &borgpb.Resources{CpuMilli: 1000, MemBytes: 1000}, ""},
		{&borgpb.Resources{CpuMilli: 899, MemBytes: 1}, &borgpb.Resources{CpuMilli: 1000, MemBytes: 1000}, ""},
		{&borgpb.Resources{CpuMilli: 900, MemBytes: 1090}, &borgpb.Resources{CpuMilli: 1000, MemBytes: 1000}, "90 % of cpu and 109 % of memory"},
		{&borgpb.Resources{DiskBytes: all}, &borgpb.Resources{DiskBytes: all}, "100 % of disk"},
		{&borgpb.Resources{CpuMilli: 5}, nil, ""},
	} {
		if got := nearQuota(&borgrpc.QuotaUse{Used: c.used, Limit: c.limit}); got != c.want {
			t.Errorf("of %v of %v: %q, want %q", c.used, c.limit, got, c.want)
		}
	}
}

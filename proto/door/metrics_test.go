package door_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const metricsPage = "../../docs/metrics.md"

// TestMetricsPage holds docs/metrics.md to what the programs count: each metric with
// its type, labels and meaning is on the page, and nothing else is. -rewrite makes the
// tables anew.
func TestMetricsPage(t *testing.T) {
	rc := newRealCell(t)
	m1 := rc.addMachine("m1")
	web := rc.runs("alice", "web", "m1")
	// A call with a stream has ended in each program that has one.
	stream, err := rc.master(identity.User, "alice").Logs(t.Context(), &borgrpc.LogsRequest{User: "alice", Name: "web", Index: 0})
	for err == nil {
		_, err = stream.Recv()
	}
	logs, err := borgrpc.NewBorgletServiceClient(dial(t, m1.addr, source(t, identity.Master, "1"), name(identity.Borglet, "m1"))).
		ReadLog(t.Context(), &borgrpc.ReadLogRequest{Copy: web})
	for err == nil {
		_, err = logs.Recv()
	}
	// So that there is another replica to tell of.
	if err := rc.replica.AddLearner(t.Context(), &borgpb.Member{Id: 2, Addr: "127.0.0.1:2"}); err != nil {
		t.Fatal(err)
	}
	url := rc.show("127.0.0.1:0", rc.m.Door(), rc.m.Pages()).URL()
	machine := rc.show("127.0.0.1:0", door.Config{Identity: source(t, identity.Borglet, "m1")}, m1.agent.Pages()).URL()
	c := browser(t, nil)
	rc.until("the learner is among the peers", func() bool {
		_, there := readFigures(t, c, url+"metrics")[`borg_borgmaster_peer_match_index{peer="2"}`]
		return there
	})

	page, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for program, at := range map[string]string{"borgmaster": url + "metrics", "scheduler": url + "scheduler/metrics", "borglet": machine + "metrics"} {
		_, body := get(t, c, at)
		problems, err := promlint.New(strings.NewReader(body)).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			if strings.HasPrefix(p.Metric, "borg_") {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var rows []string
		for _, f := range families {
			if strings.HasPrefix(f.GetName(), "borg_"+program+"_") {
				rows = append(rows, metricRow(f))
			} else if strings.HasPrefix(f.GetName(), "borg_") {
				t.Errorf("%s counts %s, which has another's name", program, f.GetName())
			}
		}
		slices.Sort(rows)
		want := "| metric | type | labels | meaning |\n|---|---|---|---|\n" + strings.Join(rows, "\n") + "\n"
		head := "\n## " + program + "\n\n"
		before, rest, ok := strings.Cut(text, head)
		if !ok {
			t.Fatalf("%s has no section %q", metricsPage, "## "+program)
		}
		got, after, _ := strings.Cut(rest, "\n\n")
		if *rewrite {
			text = before + head + strings.TrimSuffix(want, "\n") + "\n\n" + after
			continue
		}
		if got+"\n" != want {
			t.Errorf("%s does not tell what %s counts; if that is meant: go test ./proto/door -run MetricsPage -rewrite, and read the diff. It should have\n%s", metricsPage, program, want)
		}
	}
	if *rewrite {
		if err := os.WriteFile(metricsPage, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// metricRow is a metric as the page tells of it.
func metricRow(f *dto.MetricFamily) string {
	var labels []string
	for _, l := range f.GetMetric()[0].GetLabel() {
		labels = append(labels, l.GetName())
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s |", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp())
}

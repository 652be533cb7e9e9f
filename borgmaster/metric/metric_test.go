package metric

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// TestAllow wants only what an operator allowed to be asked.
func TestAllow(t *testing.T) {
	a, err := New([]string{"http://prom:9090", "https://Metrics.example/prod/"})
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]bool{
		"http://prom:9090": true, "http://prom:9090/": true, "http://prom:9090/x": true, "http://PROM:9090": true,
		"https://prom:9090": false, "http://prom": false, "http://prom:9091": false, "http://prom:9090.evil": false,
		"http://user@prom:9090": false, "http://prom:9090@evil": false, "http://prom:9090?a=b": false, "http://prom:9090#f": false,
		"https://metrics.example/prod": true, "https://metrics.example/prod/eu": true, "https://metrics.example/production": false,
		"https://metrics.example/prod/../admin": false, "https://metrics.example/prod/%2e%2e/admin": false, "https://metrics.example": false,
		"file:///etc/passwd": false, "prom:9090": false, "": false, "http://": false, "http:prom:9090": false,
	} {
		if err := a.Allow(address); (err == nil) != want {
			t.Errorf("Allow(%q) = %v, want allowed: %v", address, err, want)
		}
	}
	none, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := none.Allow("http://prom:9090"); err == nil || !strings.Contains(err.Error(), "--metric-gates") {
		t.Errorf("with nothing allowed: %v", err)
	}
	for _, bad := range []string{"prom:9090", "http://u:p@prom", "ftp://prom", "http://prom/?q"} {
		if _, err := New([]string{bad}); err == nil {
			t.Errorf("New(%q) took it", bad)
		}
	}
}

// TestAsk asks servers that answer in every way.
func TestAsk(t *testing.T) {
	vector := func(values ...string) string {
		var series []string
		for _, v := range values {
			series = append(series, fmt.Sprintf(`{"metric":{"a":"b"},"value":[1700000000.1,%q]}`, v))
		}
		return fmt.Sprintf(`{"status":"success","data":{"resultType":"vector","result":[%s]}}`, strings.Join(series, ","))
	}
	asked := ""
	secret := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("a redirect was followed to %s", r.URL)
	}))
	defer secret.Close()
	answer := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.URL.Path + " " + r.URL.Query().Get("query")
		switch answer {
		case "redirect":
			http.Redirect(w, r, secret.URL, http.StatusFound)
		case "refuse":
			http.Error(w, "what it says is nobody's business", http.StatusForbidden)
		case "endless":
			w.Write([]byte(strings.Repeat(" ", maxAnswerBytes+10)))
		case "cut":
			w.Header().Set("Content-Length", "100")
			w.Write([]byte("{"))
		default:
			w.Write([]byte(answer))
		}
	}))
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	a, err := New([]string{s.URL + "/prom"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ answer, want string }{
		{vector("0.01"), "PASS 0.01"},
		{vector("0.01", "0.0100001", "0"), "FAIL 0.0100001, and may be at most 0.01"},
		{vector("-1", "0"), "PASS -1 and 1 more"},
		{vector("-1.000001"), "FAIL -1, and must be at least -1"},
		{vector("+Inf"), "FAIL +Inf, and may be at most 0.01"},
		{vector("-Inf"), "FAIL -Inf, and must be at least -1"},
		{vector("NaN"), "UNKNOWN the query yields what is not a number"},
		{vector("1e-9"), "PASS 1e-09"},
		{vector(), "UNKNOWN the query yields nothing"},
		{`{"status":"success","data":{"resultType":"scalar","result":[1,"0"]}}`, "PASS 0"},
		{`{"status":"success","data":{"resultType":"matrix","result":[]}}`, "UNKNOWN HOST: the query yields neither a number nor a vector; ask for one moment"},
		{`{"status":"success","data":{"resultType":"vector","result":[{"value":[1,2]}]}}`, "UNKNOWN HOST: the answer holds a value that is not text"},
		{`{"status":"success","data":{"resultType":"vector","result":7}}`, "UNKNOWN HOST: the answer holds no values"},
		{`{"status":"error","error":"bad"}`, "UNKNOWN HOST: the answer is not one of a Prometheus server"},
		{`<html>`, "UNKNOWN HOST: the answer is not one of a Prometheus server"},
		{"redirect", "UNKNOWN HOST answered with status 302"},
		{"refuse", "UNKNOWN HOST answered with status 403"},
		{"endless", "UNKNOWN HOST answered with more than 262144 bytes"},
		{"cut", "UNKNOWN the answer of HOST broke off"},
	} {
		answer = c.answer
		g := &borgpb.MetricGate{Url: s.URL + "/prom", Query: `up{job="web"} > 0`, LeastMicro: new(int64(-1_000_000)), MostMicro: new(int64(10_000))}
		verdict, words := a.Ask(t.Context(), g)
		got := strings.ReplaceAll(strings.TrimPrefix(verdict.String(), "GATE_VERDICT_")+" "+words, host, "HOST")
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.answer, got, c.want)
		}
		if want := `GET /prom/api/v1/query up{job="web"} > 0`; asked != want {
			t.Errorf("asked %s, want %s", asked, want)
		}
	}
	asked = ""
	if verdict, words := a.Ask(t.Context(), &borgpb.MetricGate{Url: s.URL, Query: "up"}); verdict != borgpb.GateVerdict_GATE_VERDICT_UNKNOWN || asked != "" {
		t.Errorf("a server that is not allowed was asked: %s %s", asked, words)
	}
	s.Close()
	g := &borgpb.MetricGate{Url: s.URL + "/prom", Query: "up"}
	if verdict, words := a.Ask(t.Context(), g); verdict != borgpb.GateVerdict_GATE_VERDICT_UNKNOWN || words != host+" cannot be reached" {
		t.Errorf("a server that is gone: %v %s", verdict, words)
	}
}

package pages

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// full is a page on which every text is HTML of somebody else.
func full(evil string) *Page {
	v := Verdict{}
	v.Found(Warn, evil, "%s", evil)
	return &Page{
		Program: evil, Title: evil, Notice: evil, Verdict: v, Build: evil,
		Numbers: []Fact{{evil, Text(evil)}}, Links: []Link{{evil, evil}},
		Sections: []Section{
			{Title: evil, Words: evil, Facts: []Fact{{evil, Text(evil).To(evil)}}},
			{Title: evil, Head: []string{evil}, Rows: [][]Value{{{Text: evil, Raw: evil, Mood: Mood(evil), Bar: []Part{{evil, 1}, {evil, 2}}}}}},
		},
	}
}

func answer(s *Site, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
	return w
}

func siteOf(p *Page) *Site {
	return &Site{Status: func(context.Context) (*Page, error) { return p, nil }, Metrics: NewRegistry()}
}

// TestEverythingIsEscaped puts markup, attributes and links of others in every place.
func TestEverythingIsEscaped(t *testing.T) {
	for _, evil := range []string{`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `javascript:alert(1)`, `' onmouseover='alert(1)`} {
		body := answer(siteOf(full(evil)), "/").Body.String()
		for _, bad := range []string{"<script", "<img", `href="javascript:`, " onmouseover='", `"><img`} {
			if strings.Contains(body, bad) {
				t.Errorf("a page of %q holds %s:\n%s", evil, bad, body)
			}
		}
		data := answer(siteOf(full(evil)), "/?format=json")
		if !json.Valid(data.Body.Bytes()) || data.Header().Get("Content-Type") != "application/json" || strings.Contains(data.Body.String(), "<script") {
			t.Errorf("as JSON: %s", data.Body)
		}
	}
}

// TestJSONIsTheSameData has names with their units, and values as they are.
func TestJSONIsTheSameData(t *testing.T) {
	made := time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC)
	p := &Page{Program: "borgmaster", Title: "a page", Made: made,
		Numbers: []Fact{{"tasks running", Number(1234567)}, {"disk, free", Bytes(3 << 30)}, {"log bytes", Bytes(12)}},
		Sections: []Section{
			{Title: "Some facts", Facts: []Fact{{"since", At(made)}, {"held", Yes(true)}, {"took", Span(1500 * time.Millisecond)}}},
			{Title: "A table", Head: []string{"name", "size"}, Rows: [][]Value{{Text("m1"), Bytes(1)}, {Text("m2"), Value{Text: "–", Unit: "bytes"}}}},
			{Title: "Cut", Head: []string{"n"}, Rows: [][]Value{{Number(1)}}, More: 9},
		}}
	p.Verdict.Otherwise("Healthy.")
	body, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"program": "borgmaster", "title": "a page", "build": "", "made": "2026-11-22T01:02:03Z",
		"verdict": map[string]any{"mood": "good", "text": "Healthy.", "findings": []any{}},
		"numbers": map[string]any{"tasks_running": 1234567.0, "disk_free_bytes": 3221225472.0, "log_bytes": 12.0},
		"sections": map[string]any{
			"some_facts": map[string]any{"since": "2026-11-22T01:02:03Z", "held": true, "took_seconds": 1.5},
			"a_table":    []any{map[string]any{"name": "m1", "size_bytes": 1.0}, map[string]any{"name": "m2", "size_bytes": nil}},
			"cut":        map[string]any{"facts": map[string]any{}, "rows": []any{map[string]any{"n": 1.0}}, "more": 9.0},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestTexts(t *testing.T) {
	for got, want := range map[string]string{
		Number(0).Text: "0", Number(999).Text: "999", Number(1000).Text: "1,000", Number(-1234567).Text: "-1,234,567",
		Bytes(0).Text: "0 B", Bytes(1023).Text: "1023 B", Bytes(1536).Text: "1.5 KiB", Bytes(5 << 40).Text: "5.0 TiB",
		Span(0).Text: "0 s", Span(250 * time.Microsecond).Text: "250 µs", Span(12 * time.Millisecond).Text: "12 ms", Span(90 * time.Second).Text: "1 min 30 s",
		Span(26 * time.Hour).Text: "26 h 0 min", Span(72 * time.Hour).Text: "3 days 0 h", Span(-time.Second).Text: "-1 s",
		Some(1, "task"): "1 task", Some(1200, "job"): "1,200 jobs", At(time.Time{}).Text: "never",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestVerdictIsTheWorst of what was found, and that comes first.
func TestVerdictIsTheWorst(t *testing.T) {
	var v Verdict
	v.Found(Warn, "", "a little")
	v.Found(Bad, "", "very")
	v.Found(Warn, "", "also a little")
	v.Otherwise("all is well")
	if v.Mood != Bad || v.Text != "very" || len(v.Findings) != 3 || v.Findings[0].Text != "very" {
		t.Errorf("the verdict is %+v", v)
	}
}

// TestPagesMadeAtOnceAreBounded: more are told to come again, and one that cannot be
// made says why.
func TestPagesMadeAtOnceAreBounded(t *testing.T) {
	begun, end := make(chan bool), make(chan bool)
	s := &Site{Metrics: NewRegistry(), Status: func(context.Context) (*Page, error) {
		begun <- true
		<-end
		return nil, errors.New("it has no time")
	}}
	h := s.Handler()
	var asking sync.WaitGroup
	for range maxMaking {
		asking.Go(func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "it has no time") {
				t.Errorf("a page that cannot be made: %d %s", w.Code, w.Body)
			}
		})
		<-begun
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("beside %d others: %d %s", maxMaking, w.Code, w.Body)
	}
	close(end)
	asking.Wait()
}

// TestDistribution reads a histogram by the ends of its buckets.
func TestDistribution(t *testing.T) {
	h := NewHistogram("p", "x", "x")
	if v := Distribution(h); v.Text != "nothing yet" || v.Raw != nil {
		t.Errorf("of nothing: %+v", v)
	}
	for range 98 {
		h.Observe(0.0009)
	}
	h.Observe(0.004)
	h.Observe(60)
	if v := Distribution(h); v.Text != "p50 ≤ 1 ms, p99 ≤ 5 ms (100)" {
		t.Errorf("got %q", v.Text)
	}
	for range 100 {
		h.Observe(60)
	}
	v := Distribution(h)
	if v.Text != "p50 > 10 s, p99 > 10 s (200)" {
		t.Errorf("got %q", v.Text)
	}
	if _, err := json.Marshal(v.Raw); err != nil {
		t.Error(err)
	}
}

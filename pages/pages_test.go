package pages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

func ask(s *Site, target string) *httptest.ResponseRecorder {
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
		body := ask(siteOf(full(evil)), "/").Body.String()
		for _, bad := range []string{"<script", "<img", `href="javascript:`, " onmouseover='", `"><img`} {
			if strings.Contains(body, bad) {
				t.Errorf("a page of %q holds %s:\n%s", evil, bad, body)
			}
		}
		data := ask(siteOf(full(evil)), "/?format=json")
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

// viewKey carries the view of a reader in tests.
type viewKey struct{}

// sharedSite counts how often its page is made.
type sharedSite struct {
	h    http.Handler
	made int
}

func newSharedSite() *sharedSite {
	s := &sharedSite{}
	s.h = (&Site{
		Metrics: NewRegistry(NewFigures("p", []Figure{{Name: "made", Help: "x"}}, func(r *Reading) { s.made++; r.Set("made", float64(s.made)) })),
		View:    func(ctx context.Context) string { v, _ := ctx.Value(viewKey{}).(string); return v },
		Status: func(ctx context.Context) (*Page, error) {
			s.made++
			time.Sleep(time.Millisecond)
			return &Page{Title: fmt.Sprint("for ", ctx.Value(viewKey{}), " ", s.made)}, nil
		},
	}).Handler()
	return s
}

func (s *sharedSite) get(view, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, target, nil)
	s.h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), viewKey{}, view)))
	return w
}

// TestAnswersAreShared: all requests of one view within a second are sent the same bytes, whatever their parameters; those
// of another view are not.
func TestAnswersAreShared(t *testing.T) {
	for _, targets := range [][]string{{"/", "/?refresh=7", "/?refresh=8", "/?x=1"}, {"/?format=json"}, {"/metrics", "/metrics?x=1"}} {
		synctest.Test(t, func(t *testing.T) {
			s := newSharedSite()
			first := s.get("all", targets[0]).Body.String()
			for range 300 {
				for _, target := range targets {
					if w := s.get("all", target); w.Code != http.StatusOK || w.Body.String() != first {
						t.Fatalf("%s is %d and was rendered again", target, w.Code)
					}
				}
			}
			if s.made != 1 {
				t.Errorf("%v was made %d times within a second, want 1", targets, s.made)
			}
			time.Sleep(renderEvery + 50*time.Millisecond)
			if again := s.get("all", targets[0]).Body.String(); again == first || s.made != 2 {
				t.Errorf("%v a second later was made %d times in all, want 2", targets, s.made)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s := newSharedSite()
		for _, view := range []string{"alice", "bob", "alice", "bob"} {
			if body := s.get(view, "/").Body.String(); !strings.Contains(body, "for "+view) {
				t.Errorf("%s is sent %.400s", view, body)
			}
		}
		if s.made != 2 {
			t.Errorf("two views were made %d times, want 2", s.made)
		}
	})
}

// TestErrorsAndWaitsAreNotKept: an error that took long is sent to others for renderEvery alone, and a page that waited long
// for no more than renderMost.
func TestErrorsAndWaitsAreNotKept(t *testing.T) {
	for _, tt := range []struct {
		err  error
		code int
		kept time.Duration
	}{
		{errors.New("the loop is busy"), http.StatusServiceUnavailable, renderEvery},
		{nil, http.StatusOK, renderMost},
	} {
		synctest.Test(t, func(t *testing.T) {
			made := 0
			s := &sharedSite{h: (&Site{Metrics: NewRegistry(), Status: func(context.Context) (*Page, error) {
				made++
				time.Sleep(3 * time.Second)
				return &Page{}, tt.err
			}}).Handler()}
			get := func(want int) {
				if w := s.get("", "/"); w.Code != tt.code || made != want {
					t.Errorf("error %v: code %d, made %d times, want %d and %d", tt.err, w.Code, made, tt.code, want)
				}
			}
			get(1)
			time.Sleep(tt.kept - time.Millisecond)
			get(1)
			time.Sleep(time.Millisecond)
			get(2)
		})
	}
}

// TestRenderingIsBounded: many views that nobody has asked for within the second are refused, and pages under way
// that many wait for are made once.
func TestRenderingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharedSite()
		refused := 0
		for i := range 2 * maxRenders {
			if w := s.get(fmt.Sprint(i), "/"); w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") != "" {
				refused++
			} else if w.Code != http.StatusOK {
				t.Fatalf("view %d: %d %s", i, w.Code, w.Body)
			}
		}
		if s.made > maxRenders+rendersPerSecond || refused == 0 {
			t.Errorf("%d pages were made at once and %d refused, want at most %d made", s.made, refused, maxRenders+rendersPerSecond)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := newSharedSite()
		var asking sync.WaitGroup
		for range 100 {
			asking.Go(func() { s.get("all", "/") })
		}
		asking.Wait()
		if s.made != 1 {
			t.Errorf("a page that 100 readers wait for was made %d times", s.made)
		}
	})
}

// TestFailedPageIsTold: a page that cannot be made says why, and one whose making panics keeps nobody waiting.
func TestFailedPageIsTold(t *testing.T) {
	fails := siteOf(nil)
	fails.Status = func(context.Context) (*Page, error) { return nil, errors.New("it has no time") }
	if w := ask(fails, "/"); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "it has no time") {
		t.Errorf("a page that cannot be made: %d %s", w.Code, w.Body)
	}
	fails.Status = func(context.Context) (*Page, error) { panic("a mistake of ours") }
	h := fails.Handler()
	get := func() *httptest.ResponseRecorder {
		defer func() { _ = recover() }()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w
	}
	get()
	if w := get(); w == nil || w.Code != http.StatusInternalServerError {
		t.Errorf("after a panic the next reader is answered %v", w)
	}
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

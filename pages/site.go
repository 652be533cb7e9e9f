package pages

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// Seconds between two loads of a page that loads itself again.
const minRefresh, maxRefresh = 2, 3600

const plainText = "text/plain; charset=utf-8"

//go:embed style.css
var style []byte

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"bar": drawBar}).Parse(pageText))

// Site is all pages of a program.
type Site struct {
	// Status makes the program's page.
	Status func(ctx context.Context) (*Page, error)
	// View names what a reader may see on the status page: readers of one view are sent the same
	// bytes. Nil: everybody sees the same.
	View func(ctx context.Context) string
	// Metrics are served at /metrics.
	Metrics prometheus.Gatherer
	// Others are served below their paths, which begin with / and end without one.
	Others map[string]http.Handler

	shared *shared
}

// Handler serves the site.
func (s *Site) Handler() http.Handler {
	s.shared = newShared()
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", s.status)
	mux.HandleFunc("/style.css", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		w.Header().Set("Cache-Control", "max-age=3600")
		_, _ = w.Write(style)
	})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", plainText)
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("/metrics", s.metrics)
	for path, h := range s.Others {
		mux.Handle(path+"/", http.StripPrefix(path, h))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, fmt.Sprintf("there is no page %q; there are / (the status, ?format=json), /metrics and /healthz", r.URL.Path), http.StatusNotFound)
	})
	return mux
}

// status answers with the page. All readers of one view share it; ?refresh is a header, so that it
// makes no page of its own.
func (s *Site) status(w http.ResponseWriter, r *http.Request) {
	view, format := "", "html"
	if s.View != nil {
		view = s.View(r.Context())
	}
	render := s.html
	if wantsJSON(r) {
		format, render = "json", s.json
	}
	if n := refresh(r); n > 0 {
		w.Header().Set("Refresh", strconv.Itoa(n))
	}
	s.send(w, r, format+" "+view, func(ctx context.Context) (int, string, []byte) {
		page, err := s.Status(ctx)
		if err != nil {
			return http.StatusServiceUnavailable, plainText, []byte(err.Error() + "\n")
		}
		if page.Made.IsZero() {
			page.Made = time.Now()
		}
		kind, body, err := render(page)
		if err != nil {
			return http.StatusInternalServerError, plainText, []byte("make the page: " + err.Error() + "\n")
		}
		return http.StatusOK, kind, body
	})
}

// send answers with what render makes, or has made a moment ago for somebody else.
func (s *Site) send(w http.ResponseWriter, r *http.Request, key string, render func(context.Context) (int, string, []byte)) {
	a, err := s.shared.get(r.Context(), key, render)
	if err != nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusTooManyRequests)
		return
	}
	w.Header().Set("Content-Type", a.kind)
	w.WriteHeader(a.code)
	_, _ = w.Write(a.body)
}

func (s *Site) json(page *Page) (kind string, body []byte, err error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	err = e.Encode(page)
	return "application/json", b.Bytes(), err
}

func (s *Site) html(page *Page) (kind string, body []byte, err error) {
	var b bytes.Buffer
	err = pageTemplate.Execute(&b, struct {
		*Page
		Groups [][]Section
		When   string
	}{page, page.groups(), page.Made.UTC().Format("2006-01-02 15:04:05 UTC")})
	return "text/html; charset=utf-8", b.Bytes(), err
}

// metrics answers a scrape, in the text format and not compressed: one answer for all.
func (s *Site) metrics(w http.ResponseWriter, r *http.Request) {
	s.send(w, r, "metrics", func(context.Context) (int, string, []byte) {
		all, err := s.Metrics.Gather()
		if err != nil {
			return http.StatusInternalServerError, plainText, []byte("gather the metrics: " + err.Error() + "\n")
		}
		var b bytes.Buffer
		format := expfmt.NewFormat(expfmt.TypeTextPlain)
		e := expfmt.NewEncoder(&b, format)
		for _, one := range all {
			if err := e.Encode(one); err != nil {
				return http.StatusInternalServerError, plainText, []byte("write the metrics: " + err.Error() + "\n")
			}
		}
		return http.StatusOK, string(format), b.Bytes()
	})
}

// wantsJSON goes by ?format=json, or by what the asker accepts when that is JSON and
// no page.
func wantsJSON(r *http.Request) bool {
	if format := r.URL.Query().Get("format"); format != "" {
		return format == "json"
	}
	accept := r.Header.Get("Accept")
	return strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
}

// refresh is ?refresh=SECONDS within its bounds; 0: the page stays as it is.
func refresh(r *http.Request) int {
	n, err := strconv.Atoi(r.URL.Query().Get("refresh"))
	if err != nil || n <= 0 {
		return 0
	}
	return min(max(n, minRefresh), maxRefresh)
}

// barWidth is the width of a bar, in its own units.
const barWidth = 1000

// drawBar draws parts side by side. Only figures and classes of ours are in it.
func drawBar(parts []Part) template.HTML {
	var sum int64
	for _, p := range parts {
		sum += p.N
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="bar" viewBox="0 0 %d 10" preserveAspectRatio="none" aria-hidden="true">`, barWidth)
	at := int64(0)
	for _, p := range parts {
		if sum == 0 || p.N == 0 {
			continue
		}
		// What is there is seen.
		width := max(p.N*barWidth/sum, 4)
		fmt.Fprintf(&b, `<rect class="%s" x="%d" width="%d" height="10"/>`, template.HTMLEscapeString(p.Class), at, width)
		at += width
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

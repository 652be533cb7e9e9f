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
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// Pages that are made at one time, and scrapes. More are told to come again.
	maxMaking  = 8
	maxScrapes = 4
	// Seconds between two loads of a page that loads itself again.
	minRefresh, maxRefresh = 2, 3600
)

//go:embed style.css
var style []byte

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"bar": drawBar}).Parse(pageText))

// Site is all pages of a program.
type Site struct {
	// Status makes the program's page.
	Status func(ctx context.Context) (*Page, error)
	// Metrics are served at /metrics.
	Metrics prometheus.Gatherer
	// Others are served below their paths, which begin with / and end without one.
	Others map[string]http.Handler

	making chan struct{}
}

// Handler serves the site.
func (s *Site) Handler() http.Handler {
	s.making = make(chan struct{}, maxMaking)
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", s.status)
	mux.HandleFunc("/style.css", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		w.Header().Set("Cache-Control", "max-age=3600")
		_, _ = w.Write(style)
	})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.Handle("/metrics", promhttp.HandlerFor(s.Metrics, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: 10 * time.Second}))
	for path, h := range s.Others {
		mux.Handle(path+"/", http.StripPrefix(path, h))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, fmt.Sprintf("there is no page %q; there are / (the status, ?format=json), /metrics and /healthz", r.URL.Path), http.StatusNotFound)
	})
	return mux
}

func (s *Site) status(w http.ResponseWriter, r *http.Request) {
	select {
	case s.making <- struct{}{}:
		defer func() { <-s.making }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, fmt.Sprintf("%d pages are being made already; try again in a second", maxMaking), http.StatusServiceUnavailable)
		return
	}
	page, err := s.Status(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if page.Made.IsZero() {
		page.Made = time.Now()
	}
	// Whole before its first byte goes out: nobody gets half a page.
	var b bytes.Buffer
	if wantsJSON(r) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(&b)
		e.SetIndent("", "  ")
		err = e.Encode(page)
	} else {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		err = pageTemplate.Execute(&b, struct {
			*Page
			Groups  [][]Section
			Refresh int
			When    string
		}{page, page.groups(), refresh(r), page.Made.UTC().Format("2006-01-02 15:04:05 UTC")})
	}
	if err != nil {
		http.Error(w, "make the page: "+err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(b.Bytes())
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

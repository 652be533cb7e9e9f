package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// pretendMetrics is a Prometheus server that knows one value.
type pretendMetrics struct {
	*httptest.Server

	mu    sync.Mutex
	value string // guarded by mu
}

func (m *pretendMetrics) start() {
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		value := m.value
		m.mu.Unlock()
		if value == "gone" || r.URL.Path != "/api/v1/query" || r.URL.Query().Get("query") != "errors" {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,%q]}]}}`, value)
	}))
}

func metricCommand(ts *testscript.TestScript, neg bool, args []string) {
	m := &theCell(ts).metrics
	m.mu.Lock()
	defer m.mu.Unlock()
	m.value = args[0]
}

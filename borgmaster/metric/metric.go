// Package metric asks a Prometheus server whether a value is within the bounds of the
// gate of an update.
//
// The address comes from whoever may write a job, and the question goes out from a
// master. So an Asker asks below the addresses alone that its operator allowed, follows
// no redirect, uses no proxy, reads a bounded answer within a bounded time, and tells
// of an answer nothing but its status and the values that it could read. It must not
// decide anything: what an answer means for an update is for the cell.
package metric

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"borg/proto/borgpb"
)

const (
	// Timeout bounds one question, the whole answer included.
	Timeout = 5 * time.Second
	// maxAnswerBytes bounds an answer: an instant query that is judged has few values.
	maxAnswerBytes = 256 << 10
)

// Asker asks servers. It may be used by many at once.
type Asker struct {
	allowed []*url.URL
	client  *http.Client
}

// New makes one that asks below these addresses: "http://prometheus:9090",
// "https://metrics.example/prod". None: it asks nobody.
func New(prefixes []string) (*Asker, error) {
	a := &Asker{client: &http.Client{
		Timeout: Timeout,
		Transport: &http.Transport{
			Proxy: nil, DisableKeepAlives: true, MaxResponseHeaderBytes: 16 << 10, TLSHandshakeTimeout: Timeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	for _, p := range prefixes {
		u, err := server(p)
		if err != nil {
			return nil, err
		}
		a.allowed = append(a.allowed, u)
	}
	return a, nil
}

// server reads the address of one.
func server(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%q is not an address: want such as http://prometheus:9090", address)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.Opaque != "":
		return nil, fmt.Errorf("%q names no server: want such as http://prometheus:9090", address)
	case u.User != nil, u.RawQuery != "", u.ForceQuery, u.Fragment != "", u.RawPath != "":
		return nil, fmt.Errorf("%q: want a scheme, a host and a plain path, and no more", address)
	}
	u.Host, u.Path = strings.ToLower(u.Host), path.Clean("/"+u.Path)
	return u, nil
}

// Allow tells why an address may not be asked; nil: it may.
func (a *Asker) Allow(address string) error {
	_, err := a.find(address)
	return err
}

func (a *Asker) find(address string) (*url.URL, error) {
	u, err := server(address)
	if err != nil {
		return nil, err
	}
	for _, p := range a.allowed {
		if u.Scheme == p.Scheme && u.Host == p.Host && (p.Path == "/" || u.Path == p.Path || strings.HasPrefix(u.Path, p.Path+"/")) {
			return u, nil
		}
	}
	if len(a.allowed) == 0 {
		return nil, errors.New("masters of this cell ask no metrics; its operator allows servers with: borgmaster serve --metric-gates URL")
	}
	return nil, fmt.Errorf("masters of this cell may not ask %s; its operator allows servers with: borgmaster serve --metric-gates URL", u.Redacted())
}

// Ask puts the question of a gate, and says what was answered, for people.
func (a *Asker) Ask(ctx context.Context, g *borgpb.MetricGate) (borgpb.GateVerdict, string) {
	const unknown = borgpb.GateVerdict_GATE_VERDICT_UNKNOWN
	u, err := a.find(g.GetUrl())
	if err != nil {
		return unknown, err.Error()
	}
	values, err := a.query(ctx, u.JoinPath("api/v1/query"), g.GetQuery())
	if err != nil {
		return unknown, err.Error()
	}
	return Judge(g, values)
}

// query makes an instant query.
func (a *Asker) query(ctx context.Context, u *url.URL, question string) ([]string, error) {
	u.RawQuery = url.Values{"query": {question}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, errors.New("it cannot be asked so")
	}
	resp, err := a.client.Do(req)
	if err != nil {
		// What it says more is of addresses and ports, and differs each time.
		if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("%s did not answer within %v", u.Host, Timeout)
		}
		return nil, fmt.Errorf("%s cannot be reached", u.Host)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered with status %d", u.Host, resp.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the answer of %s broke off", u.Host)
	case len(data) > maxAnswerBytes:
		return nil, fmt.Errorf("%s answered with more than %d bytes", u.Host, maxAnswerBytes)
	}
	values, err := values(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u.Host, err)
	}
	return values, nil
}

// values reads an answer: a scalar is one value, a vector one for each series.
func values(data []byte) ([]string, error) {
	var answer struct {
		Status string
		Data   struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if json.Unmarshal(data, &answer) != nil || answer.Status != "success" {
		return nil, errors.New("the answer is not one of a Prometheus server")
	}
	var samples [][2]any
	switch answer.Data.ResultType {
	case "scalar":
		samples = make([][2]any, 1)
		if json.Unmarshal(answer.Data.Result, &samples[0]) != nil {
			return nil, errors.New("the answer holds no value")
		}
	case "vector":
		var series []struct{ Value [2]any }
		if json.Unmarshal(answer.Data.Result, &series) != nil {
			return nil, errors.New("the answer holds no values")
		}
		for _, s := range series {
			samples = append(samples, s.Value)
		}
	default:
		return nil, errors.New("the query yields neither a number nor a vector; ask for one moment")
	}
	var out []string
	for _, s := range samples {
		text, ok := s[1].(string)
		if !ok {
			return nil, errors.New("the answer holds a value that is not text")
		}
		out = append(out, text)
	}
	return out, nil
}

// Judge holds values against the bounds of a gate: each must be within.
func Judge(g *borgpb.MetricGate, values []string) (borgpb.GateVerdict, string) {
	const unknown = borgpb.GateVerdict_GATE_VERDICT_UNKNOWN
	if len(values) == 0 {
		return unknown, "the query yields nothing"
	}
	said := ""
	for _, text := range values {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(v) {
			return unknown, "the query yields what is not a number"
		}
		word := strconv.FormatFloat(v, 'g', 6, 64)
		switch {
		case g.MostMicro != nil && v > bound(*g.MostMicro):
			return borgpb.GateVerdict_GATE_VERDICT_FAIL, word + ", and may be at most " + micro(*g.MostMicro)
		case g.LeastMicro != nil && v < bound(*g.LeastMicro):
			return borgpb.GateVerdict_GATE_VERDICT_FAIL, word + ", and must be at least " + micro(*g.LeastMicro)
		}
		if said == "" {
			said = word
		}
	}
	if n := len(values) - 1; n > 0 {
		said += fmt.Sprintf(" and %d more", n)
	}
	return borgpb.GateVerdict_GATE_VERDICT_PASS, said
}

// bound is the number nearest to so many millionths: what a server prints as 0.01 is
// equal to 10,000 of them.
func bound(micro int64) float64 { return float64(micro) / 1e6 }

func micro(n int64) string {
	return strings.TrimSuffix(strings.TrimRight(big.NewRat(n, 1e6).FloatString(6), "0"), ".")
}

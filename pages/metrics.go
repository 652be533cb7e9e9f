package pages

import (
	"math"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
)

// prefix begins the name of each metric of ours.
const prefix = "borg_"

// Name is that of a metric of a program: borg_<program>_<noun>_<unit>.
func Name(program, rest string) string { return prefix + program + "_" + rest }

// Seconds are the bounds of histograms of time: from what a processor does to what a
// person waits for.
var Seconds = []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 3, 5, 10}

// NewHistogram is a histogram of seconds.
func NewHistogram(program, noun, help string) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: Name(program, noun+"_seconds"), Help: help, Buckets: Seconds})
}

// NewCounter is a counter.
func NewCounter(program, noun, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: Name(program, noun+"_total"), Help: help})
}

// NewCounters is a counter by a label, whose values are known: each is there from
// the start, so that its first increase is seen as one.
func NewCounters(program, noun, help, label string, values ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: Name(program, noun+"_total"), Help: help}, []string{label})
	for _, v := range values {
		c.WithLabelValues(v)
	}
	return c
}

// Calls counts the calls that a program has answered, and how long they took.
type Calls struct {
	seconds *prometheus.HistogramVec
	streams *prometheus.CounterVec
}

// NewCalls counts for a program.
func NewCalls(program string) *Calls {
	return &Calls{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: Name(program, "rpc_seconds"), Help: "Time from a call to its answer, by method and code.", Buckets: Seconds,
		}, []string{"method", "code"}),
		streams: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: Name(program, "rpc_streams_total"), Help: "Streaming calls that have ended, by method and code.",
		}, []string{"method", "code"}),
	}
}

// Ended notes a call. Methods are those of services that are served, so there are
// not many.
func (c *Calls) Ended(method string, stream bool, code codes.Code, took time.Duration) {
	short := method[strings.LastIndexByte(method, '/')+1:]
	if stream {
		c.streams.WithLabelValues(short, code.String()).Inc()
		return
	}
	c.seconds.WithLabelValues(short, code.String()).Observe(took.Seconds())
}

// Describe implements prometheus.Collector.
func (c *Calls) Describe(to chan<- *prometheus.Desc) {
	c.seconds.Describe(to)
	c.streams.Describe(to)
}

// Collect implements prometheus.Collector.
func (c *Calls) Collect(to chan<- prometheus.Metric) {
	c.seconds.Collect(to)
	c.streams.Collect(to)
}

// Figures are metrics that are read when somebody asks: each has a name, and Read
// gives what they are.
type Figures struct {
	program string
	read    func(*Reading)
	descs   map[string]*prometheus.Desc
	kinds   map[string]prometheus.ValueType
}

// Figure says what one of them is. Its name ends in its unit; a counter's in _total.
type Figure struct {
	Name, Help string
	Labels     []string
}

// NewFigures makes a collector. read is called with each scrape, and must be quick.
func NewFigures(program string, all []Figure, read func(*Reading)) *Figures {
	f := &Figures{program: program, read: read, descs: map[string]*prometheus.Desc{}, kinds: map[string]prometheus.ValueType{}}
	for _, one := range all {
		f.descs[one.Name] = prometheus.NewDesc(Name(program, one.Name), one.Help, one.Labels, nil)
		f.kinds[one.Name] = prometheus.GaugeValue
		if strings.HasSuffix(one.Name, "_total") {
			f.kinds[one.Name] = prometheus.CounterValue
		}
	}
	return f
}

// Reading takes the values of one scrape.
type Reading struct {
	of *Figures
	to chan<- prometheus.Metric
}

// Set gives a figure its value. One that has no name is a mistake of ours.
func (r *Reading) Set(name string, value float64, labels ...string) {
	r.to <- prometheus.MustNewConstMetric(r.of.descs[name], r.of.kinds[name], value, labels...)
}

// SetIf is Set with 1 or 0.
func (r *Reading) SetIf(name string, is bool, labels ...string) {
	v := 0.0
	if is {
		v = 1
	}
	r.Set(name, v, labels...)
}

// Describe implements prometheus.Collector.
func (f *Figures) Describe(to chan<- *prometheus.Desc) {
	for _, d := range f.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (f *Figures) Collect(to chan<- prometheus.Metric) { f.read(&Reading{f, to}) }

// NewRegistry registers what a program counts, and what its process and the Go
// runtime use.
func NewRegistry(all ...prometheus.Collector) *prometheus.Registry {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	r.MustRegister(all...)
	return r
}

// Distribution is what a histogram has seen, for people: "p50 ≤ 2.5 ms, p99 ≤ 25 ms
// (12,345)". It says in which bucket a part of all lies, by the bucket's upper end.
func Distribution(h prometheus.Histogram) Value {
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		return Text("cannot be read: " + err.Error())
	}
	n := m.GetHistogram().GetSampleCount()
	if n == 0 {
		return Value{Text: "nothing yet", Raw: nil}
	}
	p50, p99 := quantile(m.GetHistogram(), 0.5), quantile(m.GetHistogram(), 0.99)
	return Value{
		Text: "p50 " + boundText(p50) + ", p99 " + boundText(p99) + " (" + grouped(int64(n)) + ")",
		Raw:  map[string]any{"count": n, "p50_seconds": finite(p50), "p99_seconds": finite(p99), "sum_seconds": m.GetHistogram().GetSampleSum()},
	}
}

// quantile is the upper end of the bucket in which that part of all lies.
func quantile(h *dto.Histogram, part float64) float64 {
	want := uint64(math.Ceil(part * float64(h.GetSampleCount())))
	for _, b := range h.GetBucket() {
		if b.GetCumulativeCount() >= want {
			return b.GetUpperBound()
		}
	}
	return math.Inf(1)
}

func boundText(seconds float64) string {
	if math.IsInf(seconds, 1) {
		return "> " + spanText(time.Duration(Seconds[len(Seconds)-1]*1e9))
	}
	return "≤ " + spanText(time.Duration(seconds*1e9))
}

// finite is a bound as JSON can write it; nil: there is none.
func finite(seconds float64) any {
	if math.IsInf(seconds, 1) {
		return nil
	}
	return seconds
}

package cfg

import (
	"fmt"
	"runtime/metrics"
	"sync"
	"time"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// guard stops an evaluation that takes too many steps, too long, or too much
// memory.
type guard struct {
	maxSteps uint64
	maxTime  time.Duration
	maxHeap  uint64

	mu      sync.Mutex // guards what follows
	threads []*starlark.Thread
	reason  string
}

func newGuard() *guard {
	return &guard{maxSteps: maxSteps, maxTime: maxEvalTime, maxHeap: maxHeapGrowth}
}

// adopt puts a thread under the guard before it runs.
func (g *guard) adopt(t *starlark.Thread) {
	t.SetMaxExecutionSteps(g.maxSteps)
	t.OnMaxSteps = func(t *starlark.Thread) {
		g.stop(fmt.Sprintf("evaluation took more than %d steps", g.maxSteps))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.threads = append(g.threads, t)
	if g.reason != "" {
		t.Cancel(g.reason)
	}
}

func (g *guard) stop(reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reason == "" {
		g.reason = reason
	}
	for _, t := range g.threads {
		t.Cancel(g.reason)
	}
}

// stopped is why the evaluation was stopped, or "".
func (g *guard) stopped() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reason
}

type outcome struct {
	globals starlark.StringDict
	err     error
}

// watch runs f and stops it when it passes a bound. The interpreter looks for
// a stop between two steps. One step that does not end, deep in a built-in, is
// left behind after a moment: its goroutine cannot be stopped, and the process
// that evaluates a file is about to say so and end.
func (g *guard) watch(f func() (starlark.StringDict, error)) (starlark.StringDict, error) {
	done := make(chan outcome, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- outcome{err: fmt.Errorf("the interpreter gave up: %v", r)}
			}
		}()
		globals, err := f()
		done <- outcome{globals, err}
	}()
	base := heapBytes()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(g.maxTime)
	defer deadline.Stop()
	var leave <-chan time.Time
	for {
		select {
		case o := <-done:
			return o.globals, o.err
		case <-tick.C:
			if leave == nil && g.tooMuch(base) {
				g.stop(fmt.Sprintf("evaluation took more than %d MiB of memory", g.maxHeap>>20))
				leave = time.After(300 * time.Millisecond)
			}
		case <-deadline.C:
			g.stop(fmt.Sprintf("evaluation took longer than %v", g.maxTime))
			leave = time.After(300 * time.Millisecond)
		case <-leave:
			return nil, fmt.Errorf("%s, in one operation", g.stopped())
		}
	}
}

// tooMuch tells whether the heap has grown past the bound. Garbage counts: to
// collect it first takes time, in which a file that doubles a list goes on.
func (g *guard) tooMuch(base uint64) bool { return heapBytes() > base+g.maxHeap }

func heapBytes() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}

// Names under which the bounded operations are called. No file can write them.
const (
	multiply = "*"
	add      = "+"
	extend   = "+="
)

// guardSyntax makes every multiplication and addition of a file go through
// functions that look at the size of what would come out: "x" * 10**9 is one
// step of the interpreter, and by the time it has ended the machine is out of
// memory. x * y becomes multiply(x, y) * 1.
func guardSyntax(file *syntax.File) {
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.BinaryExpr:
			switch n.Op {
			case syntax.STAR:
				n.X = bounded(multiply, n.X, n.Y, n.OpPos)
				n.Y = one(n.X)
			case syntax.PLUS:
				n.X = bounded(add, n.X, n.Y, n.OpPos)
				n.Op, n.Y = syntax.STAR, one(n.X)
			}
		case *syntax.AssignStmt:
			// Only names: of anything else the left side would be computed
			// twice. What that lets through, the watch over the heap stops.
			id, ok := n.LHS.(*syntax.Ident)
			if !ok {
				break
			}
			old := &syntax.Ident{NamePos: id.NamePos, Name: id.Name}
			switch n.Op {
			case syntax.STAR_EQ:
				n.Op, n.RHS = syntax.EQ, bounded(multiply, old, n.RHS, n.OpPos)
			case syntax.PLUS_EQ:
				n.RHS = bounded(extend, old, n.RHS, n.OpPos)
			}
		}
		return true
	})
}

func bounded(name string, x, y syntax.Expr, op syntax.Position) syntax.Expr {
	start, _ := x.Span()
	_, end := y.Span()
	end.Col--
	return &syntax.CallExpr{
		Fn:     &syntax.Ident{NamePos: start, Name: name},
		Lparen: op, Args: []syntax.Expr{x, y}, Rparen: end,
	}
}

func one(x syntax.Expr) syntax.Expr {
	_, end := x.Span()
	end.Col--
	return &syntax.Literal{Token: syntax.INT, TokenPos: end, Raw: "1", Value: int64(1)}
}

// multiplyBounded refuses products that are too large to make.
func multiplyBounded(_ *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
	x, y := args[0], args[1]
	for _, pair := range [][2]starlark.Value{{x, y}, {y, x}} {
		times, ok := pair[0].(starlark.Int)
		if !ok {
			continue
		}
		if err := checkProduct(times, pair[1]); err != nil {
			return nil, err
		}
	}
	return starlark.Binary(syntax.STAR, x, y)
}

func checkProduct(times starlark.Int, of starlark.Value) error {
	if z, ok := of.(starlark.Int); ok {
		if times.BigInt().BitLen()+z.BigInt().BitLen() > maxRepeat {
			return fmt.Errorf("a number with more than %d binary digits", maxRepeat)
		}
		return nil
	}
	n := starlark.Len(of)
	if n <= 0 {
		return nil
	}
	count, ok := times.Int64()
	if times.Sign() > 0 && (!ok || count > int64(maxRepeat/n)) {
		return fmt.Errorf("%s times %d elements are too many; a list or text may have %d", times, n, maxRepeat)
	}
	return nil
}

// addBounded refuses sums of lists and texts that are too large to make.
func addBounded(_ *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
	if err := checkSum(args[0], args[1]); err != nil {
		return nil, err
	}
	return starlark.Binary(syntax.PLUS, args[0], args[1])
}

// extendBounded is for x += y, which changes a list in place: it looks at both
// and gives back y.
func extendBounded(_ *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
	if err := checkSum(args[0], args[1]); err != nil {
		return nil, err
	}
	return args[1], nil
}

func checkSum(x, y starlark.Value) error {
	if a, b := starlark.Len(x), starlark.Len(y); a > 0 && b > 0 && a+b > maxRepeat {
		return fmt.Errorf("%d and %d elements are too many; a list or text may have %d", a, b, maxRepeat)
	}
	return nil
}

// rangeBounded is range() with a bound, since built-ins walk a whole range in
// one step.
func rangeBounded(t *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	r, err := starlark.Call(t, starlark.Universe["range"], args, kwargs)
	if err != nil {
		return nil, err
	}
	if n := starlark.Len(r); n > maxRepeat {
		return nil, fmt.Errorf("a range of %d numbers is too long; it may have %d", n, maxRepeat)
	}
	return r, nil
}

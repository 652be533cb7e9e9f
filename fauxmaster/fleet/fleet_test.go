package fleet

import (
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borglet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// Each machine is found at its own address, and nobody at any other.
func TestAddresses(t *testing.T) {
	f := &Fleet{cfg: Config{First: 1}}
	for range 70_000 {
		f.machines = append(f.machines, &machine{})
	}
	at := func(addr string) *machine {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		return f.at(a)
	}
	for _, k := range []int{1, 255, 256, 257, 65_535, 65_536, 70_000} {
		if got := at(Addr(k, 7100).String()); got != f.machines[k-1] {
			t.Errorf("at %v is another machine than %d", Addr(k, 7100), k)
		}
	}
	if got := Addr(1, 7100).String(); got != "127.64.0.1:7100" {
		t.Errorf("Addr(1) = %s", got)
	}
	for _, addr := range []string{"127.64.0.0:1", "127.0.0.1:1", "10.64.0.1:1", Addr(70_001, 1).String(), "[::1]:1"} {
		if at(addr) != nil {
			t.Errorf("a machine is at %s", addr)
		}
	}
	if f.at(&net.UnixAddr{Name: "@"}) != nil {
		t.Error("a machine is on a socket")
	}
	// Those of another process.
	f = &Fleet{cfg: Config{First: 101}, machines: f.machines[100:200]}
	for k, there := range map[int]bool{100: false, 101: true, 200: true, 201: false} {
		if got := at(Addr(k, 7100).String()); (got != nil) != there || there && got != f.machines[k-101] {
			t.Errorf("of the machines 101 to 200 one is at the address of %d: %v", k, got != nil)
		}
	}
}

// A seed draws the same machines again; another one draws others. All shapes occur,
// about as often as they should.
func TestSpecs(t *testing.T) {
	const n = 10_000
	differ, ofShape := 0, map[[2]int64]int64{}
	for k := 1; k <= n; k++ {
		one, again, other := Spec(1, k, 7100), Spec(1, k, 7100), Spec(2, k, 7100)
		if !proto.Equal(one, again) {
			t.Fatalf("machine %d is %v and then %v", k, one, again)
		}
		if !proto.Equal(one, other) {
			differ++
		}
		ofShape[[2]int64{one.Capacity.CpuMilli, one.Capacity.MemBytes >> 30}]++
	}
	if differ < n/2 {
		t.Errorf("%d of %d machines are others with another seed", differ, n)
	}
	for _, s := range shapes {
		if got, want := ofShape[[2]int64{s.cpuMilli, s.memGiB}], s.share*n/100; got < want*8/10 || got > want*12/10 {
			t.Errorf("%d machines have %d mcpu and %d GiB, want about %d", got, s.cpuMilli, s.memGiB, want)
		}
	}
}

// Lives are drawn from the seed, within what was said of them.
func TestLives(t *testing.T) {
	batch := &borgrpc.Desired{Kind: borgpb.JobKind_JOB_KIND_BATCH}
	service := &borgrpc.Desired{Kind: borgpb.JobKind_JOB_KIND_SERVICE}
	life := Life{StartDelay: time.Second, RunTime: 10 * time.Second, FailPermille: 200}
	one, again := rand.New(rand.NewPCG(7, 1)), rand.New(rand.NewPCG(7, 1))
	failed := 0
	for i := range 1000 {
		start, ns, code := draw(life, one, batch)
		if s, n, c := draw(life, again, batch); s != start || n != ns || c != code {
			t.Fatalf("draw %d: start %d, %d ns, code %d; the same seed then draws %d, %d, %d", i, start, ns, code, s, n, c)
		}
		if start < 5e8 || start > 15e8 || ns < 1 || ns > 15e9 || (code == 0 && ns < 5e9) {
			t.Fatalf("draw %d: start %d, %d ns, code %d", i, start, ns, code)
		}
		if code != 0 {
			failed++
		}
	}
	if failed < 150 || failed > 250 {
		t.Errorf("%d of 1000 runs fail, want about 200", failed)
	}
	if ns, code := (Life{RunTime: time.Second}).lasts(one, service); ns != 0 || code != 0 {
		t.Errorf("a service ends after %d ns with code %d", ns, code)
	}
	if ns, code := (Life{}).lasts(one, batch); ns != 0 || code != 0 {
		t.Errorf("a batch task ends after %d ns with code %d, and nothing was said of that", ns, code)
	}
}

func draw(l Life, r *rand.Rand, d *borgrpc.Desired) (startNs, ns int64, code int32) {
	startNs = l.startNs(r)
	ns, code = l.lasts(r, d)
	return startNs, ns, code
}

// Usage swings around its average and stays within the limits.
func TestUsage(t *testing.T) {
	const limitMilli, limitBytes = 1000, 1 << 30
	d := &borgrpc.Desired{Spec: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: limitMilli, MemBytes: limitBytes}}}
	id := borglet.ID{JobUID: "1-2-3", Index: 4, Attempt: 1}
	for _, percent := range []int64{0, 10, 90, 100} {
		life := Life{UsagePercent: int(percent)}
		if percent == 0 {
			percent = usagePercent
		}
		var sum, n int64
		low, high := int64(limitMilli), int64(0)
		for age := int64(0); age < usagePeriodNs; age += usagePeriodNs / 200 {
			u := life.uses(id, d, age)
			if u.CpuMilliPeak > limitMilli || u.CpuMilliMean > u.CpuMilliPeak || u.MemBytesPeak > limitBytes || u.MemBytesMean <= 0 {
				t.Fatalf("%d %%: after %d ns it uses %v", percent, age, u)
			}
			sum, n = sum+u.CpuMilliMean, n+1
			low, high = min(low, u.CpuMilliMean), max(high, u.CpuMilliMean)
		}
		want := limitMilli * percent / 100
		if mean := sum / n; percent <= 60 && (mean < want*97/100 || mean > want*103/100) {
			t.Errorf("%d %%: the mean is %d, want about %d", percent, mean, want)
		}
		if low > want*55/100 || high < min(want*145/100, limitMilli) {
			t.Errorf("%d %%: it swings from %d to %d around %d", percent, low, high, want)
		}
	}
}

// Tasks use just what they are told to.
func TestToldUsage(t *testing.T) {
	d := &borgrpc.Desired{Spec: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 10 << 30}}}
	u := usesJust(borglet.ID{JobUID: "1-2-3", Index: 4, Attempt: 1}, d, 20)
	if u.MemBytesMean != 2<<30 || u.MemBytesPeak != 2<<30 || u.CpuMilliMean != 200 || u.GetCopy().GetIndex() != 4 {
		t.Errorf("20 %% of 10 GiB and a core is %v", u)
	}
}

package journal

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgrpc"
)

// BenchmarkKeeper adds up, keeps, drafts and hands over what a link shard of 2,000 machines
// with 15 copies each is told in a window of five minutes, one poll of each machine in five
// seconds, and takes it in on the other side. What a connection costs is not in it.
func BenchmarkKeeper(b *testing.B) {
	const machines, copies, pollEvery = 2_000, 15, 5
	told, names := make([][]*borgrpc.Usage, machines), make([]string, machines)
	for m := range told {
		names[m] = fmt.Sprintf("machine-%d", m)
		for c := range copies {
			told[m] = append(told[m], &borgrpc.Usage{
				Copy:         &borgrpc.CopyID{JobUid: fmt.Sprintf("01JD%022d", m), Index: uint32(c), Attempt: uint64(m*copies + c)},
				CpuMilliMean: 300, CpuMilliPeak: 500, MemBytesMean: 1 << 30, MemBytesPeak: 1<<30 + 1,
			})
		}
	}
	now := time.Unix(1_700_000_100, 0)
	here, there := journalAt(b, b.TempDir(), &now), journalAt(b, b.TempDir(), &now)
	second := NewSecond(1, here, 5_000)
	rows, drafts := 0, 0
	speak := func() {
		for more := true; more; {
			_, req := second.Message(now.UnixNano(), []uint64{2})
			if req == nil {
				return
			}
			data, err := proto.Marshal(req)
			if err != nil {
				b.Fatal(err)
			}
			got := new(borgrpc.KeepUsageRequest)
			if err := proto.Unmarshal(data, got); err != nil {
				b.Fatal(err)
			}
			rows, drafts = rows+len(got.Rows), drafts+DraftsIn(got.Drafts)
			if err := there.Keep(got.Rows); err != nil {
				b.Fatal(err)
			}
			more = second.Answered(!there.Hold(now.UnixNano(), got))
		}
	}
	b.ReportAllocs()
	used := processorTime(b)
	for b.Loop() {
		for range int(DefaultWindow / time.Second) {
			for m := now.Unix() % pollEvery; m < machines; m += pollEvery {
				here.Told(names[m], told[m], nil)
			}
			now = now.Add(time.Second)
			ended, before := here.Ended(false)
			if err := here.Keep(ended); err != nil {
				b.Fatal(err)
			}
			second.Finished(ended, before)
			there.Rescued(now.UnixNano(), false)
			speak()
		}
	}
	b.ReportMetric(float64(rows)/float64(b.N), "rows/op")
	b.ReportMetric(float64(drafts)/float64(b.N), "drafts/op")
	b.ReportMetric((processorTime(b)-used).Seconds()/float64(b.N)/DefaultWindow.Seconds(), "cores")
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

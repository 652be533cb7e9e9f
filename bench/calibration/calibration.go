// Package calibration measures the machine with a fixed program: hashing, random
// reads of memory, writes that must reach the disk, and calls over loopback.
// Figures of a cell that were measured on two machines, or on one machine at two
// times, can be compared only beside these four. It knows nothing of the rest of
// the project, and must not change: another program would be another scale.
package calibration

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"
)

// Result is what the machine did at that moment. Each is the better of rounds,
// so that a short disturbance does not count.
type Result struct {
	// SHA-256 by one core. MiB a second.
	HashMiBPerS float64
	// Reads of 4 bytes, each at a place that the one before decides, in 256 MiB.
	// A second, by one core.
	GathersPerS float64
	// Median time to append 4 KiB to a file and sync it. Milliseconds.
	SyncMs float64
	// Median time of one byte there and back over a TCP connection to this
	// machine. Microseconds.
	CallUs float64
}

const (
	rounds    = 3
	hashBytes = 64 << 20
	// 2^26 words of 4 bytes; a power of two, so that the sequence below visits all.
	gatherWords = 1 << 26
	gathers     = 2_000_000
	syncs       = 50
	calls       = 2_000
)

// Measure runs the program; about five seconds. It writes a file into dir, and
// removes it.
func Measure(dir string) (Result, error) {
	var r Result
	buf := make([]byte, hashBytes)
	words := make([]uint32, gatherWords)
	for i := range words {
		// Full period by Hull and Dobell: the factor is 1 modulo 4, the step odd.
		words[i] = (uint32(i)*1_664_525 + 1_013_904_223) % gatherWords
	}
	for range rounds {
		r.HashMiBPerS = max(r.HashMiBPerS, perSecond(hashBytes>>20, func() { sha256.Sum256(buf) }))
		at := uint32(0)
		r.GathersPerS = max(r.GathersPerS, perSecond(gathers, func() {
			for range gathers {
				at = words[at]
			}
		}))
		if at >= gatherWords {
			return r, errors.New("a read left its array")
		}
	}
	var err error
	if r.SyncMs, err = syncMs(dir); err != nil {
		return r, fmt.Errorf("calibrate the disk: %w", err)
	}
	if r.CallUs, err = callUs(); err != nil {
		return r, fmt.Errorf("calibrate loopback: %w", err)
	}
	return r, nil
}

// perSecond returns how many of n units do did in a second.
func perSecond(n float64, do func()) float64 {
	began := time.Now()
	do()
	return n / time.Since(began).Seconds()
}

// median returns the middle of n durations.
func median(n int, do func() error) (time.Duration, error) {
	all := make([]time.Duration, n)
	for i := range all {
		began := time.Now()
		if err := do(); err != nil {
			return 0, err
		}
		all[i] = time.Since(began)
	}
	slices.Sort(all)
	return all[n/2], nil
}

func syncMs(dir string) (ms float64, err error) {
	f, err := os.CreateTemp(dir, "calibration-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 4<<10)
	d, err := median(syncs, func() error {
		if _, err := f.Write(block); err != nil {
			return err
		}
		return f.Sync()
	})
	return float64(d.Nanoseconds()) / 1e6, err
}

func callUs() (us float64, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	ended := make(chan error, 1)
	// Answers one connection; ends when it is closed.
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.Copy(c, c)
			err = errors.Join(err, c.Close())
		}
		ended <- err
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return 0, err
	}
	one := make([]byte, 1)
	d, err := median(calls, func() error {
		if _, err := c.Write(one); err != nil {
			return err
		}
		_, err := io.ReadFull(c, one)
		return err
	})
	return float64(d.Nanoseconds()) / 1e3, errors.Join(err, c.Close(), <-ended)
}

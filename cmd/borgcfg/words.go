package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
	"borg/tell"
)

// word is the short word of an enum's value: "running" for STATE_RUNNING.
func word(e protoreflect.Enum) string { return tell.Word(e) }

func stateCell(s borgpb.State) cell {
	c := cell{text: word(s)}
	switch s {
	case borgpb.State_STATE_RUNNING:
		c.style = good
	case borgpb.State_STATE_PENDING:
		c.style = waiting
	case borgpb.State_STATE_DEAD:
		c.style = dim
	}
	return c
}

func attemptCell(s borgpb.AttemptState) cell {
	c := cell{text: word(s)}
	switch s {
	case borgpb.AttemptState_ATTEMPT_STATE_RUNNING, borgpb.AttemptState_ATTEMPT_STATE_FINISHED:
		c.style = good
	case borgpb.AttemptState_ATTEMPT_STATE_ASSIGNED, borgpb.AttemptState_ATTEMPT_STATE_STARTING, borgpb.AttemptState_ATTEMPT_STATE_STOPPING:
		c.style = waiting
	case borgpb.AttemptState_ATTEMPT_STATE_BACKOFF, borgpb.AttemptState_ATTEMPT_STATE_FAILED,
		borgpb.AttemptState_ATTEMPT_STATE_UNREACHABLE, borgpb.AttemptState_ATTEMPT_STATE_LOST:
		c.style = bad
	}
	return c
}

// cpuText is an amount of cpu: "0.5", "2".
func cpuText(milli int64) string {
	s := strconv.FormatFloat(float64(milli)/1000, 'f', 3, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// bytesText is an amount of bytes to about three digits: "64 MiB", "1.5 GiB".
func bytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	s := strconv.FormatFloat(v, 'f', 1, 64)
	if v >= 100 || i == 0 {
		s = strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strings.TrimSuffix(s, ".0") + " " + units[i]
}

// ago is how long ago a wall time was: "12s", "3m", "2h5m", "4d".
func ago(now time.Time, wallNs int64) string {
	if wallNs == 0 {
		return ""
	}
	return span(now.Sub(time.Unix(0, wallNs)))
}

func span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// exitText says how a process ended.
func exitText(e *borgpb.Exit) string { return tell.Exit(e) }

// plural is "1 task", "2 tasks".
func plural[N ~uint32 | ~int](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func copies(n uint32) string {
	if n == 1 {
		return "1 copy"
	}
	return fmt.Sprintf("%d copies", n)
}

package cell

import (
	"errors"
	"strings"

	"borg/proto/borgpb"
)

// FormatExitReasons is the format from which on it is known why a borglet ended a process
// of its own accord.
const FormatExitReasons = 10

// FormatExitWays is the format from which on it is known in which way a process did not
// start, or was killed, and which ports others hold.
const FormatExitWays = 12

// maxExitWay bounds the numbers of the ways of ending.
const maxExitWay = 1 << 10

// Exit is how a process ended.
type Exit struct {
	Code, Signal int32
	OOM, Unknown bool
	EndedWallNs  int64
	Error        string
	// Why its borglet ended it; empty: it ended by itself, or was told to.
	Reason string
	// Which way of not starting, or of being killed, it was. Since format 12.
	Way borgpb.ExitReason
	// With OOM: the process that the kernel killed first, and the memory that it held
	// then; empty and zero when they are not known. Since format 12.
	OOMProcess string
	OOMBytes   int64
}

func exitOf(e *borgpb.Exit) *Exit {
	if e == nil {
		return nil
	}
	return &Exit{
		Code: e.Code, Signal: e.Signal, OOM: e.Oom, Unknown: e.Unknown, EndedWallNs: e.EndedWallNs,
		Error: clip(e.Error, maxReportTextBytes), Reason: clip(e.Reason, maxReportTextBytes),
		Way: e.ReasonCode, OOMProcess: clip(e.OomProcess, maxProcessNameBytes), OOMBytes: e.OomBytes,
	}
}

// validExit reports whether the figures of an exit make sense. A way of ending that this
// build does not know is refused, since no format has it.
func validExit(e *borgpb.Exit) bool {
	_, known := borgpb.ExitReason_name[int32(e.GetReasonCode())]
	return known && e.GetOomBytes() >= 0 && e.GetOomBytes() <= maxMemBytes
}

func hasExitWay(e *borgpb.Exit) bool {
	return e.GetReasonCode() != 0 || e.GetOomProcess() != "" || e.GetOomBytes() != 0
}

func (e *Exit) same(o *Exit) bool {
	if e == nil || o == nil {
		return e == o
	}
	return *e == *o
}

// Proto converts; nil stays nil.
func (e *Exit) Proto() *borgpb.Exit {
	if e == nil {
		return nil
	}
	return &borgpb.Exit{
		Code: e.Code, Signal: e.Signal, Oom: e.OOM, Unknown: e.Unknown,
		EndedWallNs: e.EndedWallNs, Error: e.Error, Reason: e.Reason,
		ReasonCode: e.Way, OomProcess: e.OOMProcess, OomBytes: e.OOMBytes,
	}
}

func (e *Exit) why() string {
	if e == nil {
		return ""
	}
	return e.Reason
}

// exitReason writes why the last process of a copy was ended, if its borglet did it.
func (e *encoder) exitReason(x *Exit) {
	if why := x.why(); why != "" {
		e.byte(tagExitReason)
		e.str(why)
	}
}

func (l *loader) exitReason(d *decoder, p *Copy) error {
	if l.c.format < FormatExitReasons || !d.tagged(tagExitReason) {
		return nil
	}
	why := d.str()
	if p.exit == nil || why == "" || len(why) > maxReportTextBytes {
		return errOdd
	}
	p.exit.Reason = why
	return nil
}

// exitWay writes which way of not starting or of being killed it was.
func (e *encoder) exitWay(x *Exit) {
	if x == nil || x.Way == 0 && x.OOMProcess == "" && x.OOMBytes == 0 {
		return
	}
	e.byte(tagExitWay)
	e.uint(uint64(x.Way))
	e.str(x.OOMProcess)
	e.int(x.OOMBytes)
}

func (l *loader) exitWay(d *decoder, p *Copy) error {
	if l.c.format < FormatExitWays || !d.tagged(tagExitWay) {
		return nil
	}
	way, process, bytes := d.uint(), d.str(), d.int()
	e := &borgpb.Exit{ReasonCode: borgpb.ExitReason(way), OomProcess: process, OomBytes: bytes}
	if p.exit == nil || way > maxExitWay || !validExit(e) || !hasExitWay(e) || len(process) > maxProcessNameBytes {
		return errOdd
	}
	p.exit.Way, p.exit.OOMProcess, p.exit.OOMBytes = e.ReasonCode, process, bytes
	return nil
}

// checkExit is the invariant of why a copy's last process was ended.
func (c *Cell) checkExit(p *Copy) error {
	if p.exit.why() != "" && c.format < FormatExitReasons {
		return errors.New("it has a reason of its exit that its format does not know")
	}
	if hasExitWay(p.Exit()) && c.format < FormatExitWays {
		return errors.New("it has a way of ending that its format does not know")
	}
	return nil
}

// kernelKilled begins the words of a borglet (borglet/oomkills.go) on processes of a run that the kernel killed.
const kernelKilled = "the kernel has killed "

// killsIn is the part of what a borglet says that tells of such processes.
func killsIn(text string) string {
	_, after, _ := strings.Cut(text, kernelKilled)
	words, _, _ := strings.Cut(after, ";")
	return words
}

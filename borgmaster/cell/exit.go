package cell

import (
	"errors"

	"borg/proto/borgpb"
)

// FormatExitReasons is the format from which on it is known why a borglet ended a process
// of its own accord.
const FormatExitReasons = 10

// Exit is how a process ended.
type Exit struct {
	Code, Signal int32
	OOM, Unknown bool
	EndedWallNs  int64
	Error        string
	// Why its borglet ended it; empty: it ended by itself, or was told to.
	Reason string
}

func exitOf(e *borgpb.Exit) *Exit {
	if e == nil {
		return nil
	}
	return &Exit{e.Code, e.Signal, e.Oom, e.Unknown, e.EndedWallNs, clip(e.Error, maxReportTextBytes), clip(e.Reason, maxReportTextBytes)}
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

// checkExit is the invariant of why a copy's last process was ended.
func (c *Cell) checkExit(p *Copy) error {
	if p.exit.why() != "" && c.format < FormatExitReasons {
		return errors.New("it has a reason of its exit that its format does not know")
	}
	return nil
}

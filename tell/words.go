package tell

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/cli"
	"borg/proto/borgpb"
)

// Word is the short word of an enum's value: "running" for STATE_RUNNING.
func Word(e protoreflect.Enum) string {
	ed := e.Descriptor()
	v := ed.Values().ByNumber(e.Number())
	if v == nil {
		return strconv.Itoa(int(e.Number()))
	}
	if e.Number() == 0 {
		return ""
	}
	prefix := strings.TrimSuffix(string(ed.Values().ByNumber(0).Name()), "UNSPECIFIED")
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix))
}

// Exit says how a process ended, and why its borglet ended it.
func Exit(e *borgpb.Exit) string {
	if e.GetReason() != "" {
		return exit(e) + ": " + e.Reason
	}
	return exit(e)
}

func exit(e *borgpb.Exit) string {
	switch {
	case e == nil:
		return ""
	case e.Error != "":
		return e.Error
	case e.Unknown:
		return "exit code unknown"
	case e.Oom && e.ReasonCode == borgpb.ExitReason_EXIT_REASON_CHILD_OUT_OF_MEMORY:
		return ended(e) + " after the kernel killed its process " + oomProcess(e) + ": out of memory"
	case e.Oom && e.OomProcess != "":
		return "out of memory: the kernel killed " + oomProcess(e)
	case e.Oom:
		return "out of memory"
	}
	return ended(e)
}

// oomProcess is "worker, which held 31.5 MiB".
func oomProcess(e *borgpb.Exit) string {
	if e.OomProcess == "" {
		return "(its name is not known)"
	}
	return fmt.Sprintf("%s, which held %.1f MiB", e.OomProcess, float64(e.OomBytes)/(1<<20))
}

func ended(e *borgpb.Exit) string {
	if e.Signal != 0 {
		return "signal " + signalText(e.Signal)
	}
	return fmt.Sprintf("exit %d", e.Code)
}

func signalText(n int32) string {
	names := map[int32]string{1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 11: "SEGV", 13: "PIPE", 14: "ALRM", 15: "TERM"}
	if name := names[n]; name != "" {
		return fmt.Sprintf("%d (%s)", n, name)
	}
	return strconv.Itoa(int(n))
}

// plural is "1 task", "2 tasks".
func plural(n uint32, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// moment is a wall time to the millisecond.
func moment(wallNs int64) string {
	return time.Unix(0, wallNs).UTC().Format("2006-01-02T15:04:05.000Z")
}

// Event is one line of what happened, beginning with when and where in the log.
func Event(e *borgpb.Event) string {
	return cli.Visible(fmt.Sprintf("%s  %-8d ", moment(e.WallNs), e.Index) + happened(e))
}

// Happened is Event without when and where.
func Happened(e *borgpb.Event) string { return cli.Visible(happened(e)) }

func happened(e *borgpb.Event) string {
	line := fmt.Sprintf("%-16s %s", Word(e.Kind), e.Object)
	if e.Attempt != 0 {
		line += fmt.Sprintf(" attempt %d", e.Attempt)
	}
	if e.Machine != "" && e.Machine != e.Object {
		line += " on " + e.Machine
	}
	if from, to := Word(e.From), Word(e.To); to != "" && from != to {
		line += fmt.Sprintf(" %s->%s", cmp.Or(from, "new"), to)
	}
	if cause := Word(e.Cause); cause != "" {
		line += " because of " + cause
	}
	switch end := Exit(e.Exit); {
	case end != "" && strings.HasPrefix(e.Reason, end):
		// What is said of it begins with how it ended.
		line += ", " + e.Reason
	default:
		if end != "" {
			line += ", " + end
		}
		if e.Reason != "" && e.Reason != e.Exit.GetReason() {
			line += ": " + e.Reason
		}
	}
	if e.User != "" {
		line += " (by " + e.User + ")"
	}
	return line
}

// Audit is one line of who did what: when, where in the log, who, what, what came
// of it, and how it was asked for.
func Audit(r *borgpb.AuditRecord) string {
	at := "-"
	if r.Index != 0 {
		at = strconv.FormatUint(r.Index, 10)
	}
	if r.Replica != 0 {
		at = fmt.Sprintf("replica %d", r.Replica)
	}
	line := fmt.Sprintf("%s  %-9s ", moment(r.WallNs), at)
	if h := r.Hole; h != nil {
		what := "something is missing"
		if h.To != 0 {
			what = fmt.Sprintf("nothing is known of %d to %d", h.From, h.To)
		}
		return cli.Visible(line + " (" + what + ": " + h.Why + ")")
	}
	if r.Drop != nil {
		return cli.Visible(line + " (" + Dropped(r) + ")")
	}
	return cli.Visible(line + fmt.Sprintf(" %-12s ", cmp.Or(whoOf(r), "-")) + did(r))
}

// Dropped says how much of somebody's was dropped because it passed his share.
func Dropped(r *borgpb.AuditRecord) string {
	what := fmt.Sprintf("%d entries of %s from %s to %s were dropped", r.Drop.GetRecords(), cmp.Or(whoOf(r), "-"), moment(r.WallNs), moment(r.LastWallNs))
	if times := r.Drop.GetTimes(); times > r.Drop.GetRecords() {
		what += fmt.Sprintf(", which stood for %d", times)
	}
	return cli.Visible(what + ": more was kept of this caller than its share")
}

func whoOf(r *borgpb.AuditRecord) string {
	if r.Role != borgpb.Role_ROLE_USER && r.Role != borgpb.Role_ROLE_UNSPECIFIED {
		return strings.TrimSpace(Word(r.Role) + " " + r.Who)
	}
	return r.Who
}

func did(r *borgpb.AuditRecord) string {
	line := r.Verb
	if r.Object != "" {
		line += " " + r.Object
	}
	switch {
	case r.Refusal != nil:
		line += " REFUSED "
		if r.Count > 1 {
			line += fmt.Sprintf("%d times until %s ", r.Count, moment(r.LastWallNs))
		}
		line += Word(r.Refusal.Kind) + ": " + r.Refusal.Message
	case r.Version != 0:
		line += fmt.Sprintf(" done, version %d", r.Version)
	default:
		line += " done"
	}
	if r.Command != "" {
		line += "; by: " + r.Command
	}
	if r.ConfigHash != "" {
		line += "; config " + r.ConfigHash[:min(len(r.ConfigHash), 12)]
	}
	if r.Reason != "" {
		line += "; because: " + r.Reason
	}
	return line
}

package cell

import (
	"fmt"
	"strings"

	"borg/proto/borgpb"
)

// quarantine reads: quarantine|release USER/JOB/INDEX [attempt=N] [for=60s].
func (s *script) quarantine() *borgpb.Op {
	id, err := ParseTaskID(s.first(0))
	if err != nil {
		s.d.Fatalf(s.t, "%v", err)
	}
	op := &borgpb.Op{Reason: s.arg("reason", "")}
	attempt := uint64(s.num("attempt", 0))
	if s.d.Cmd == "release" {
		op.Op = &borgpb.Op_ReleaseTask{ReleaseTask: &borgpb.ReleaseTask{User: id.Job.User, Name: id.Job.Name, Index: id.Index, Attempt: attempt}}
	} else {
		op.Op = &borgpb.Op_QuarantineTask{QuarantineTask: &borgpb.QuarantineTask{
			User: id.Job.User, Name: id.Job.Name, Index: id.Index, Attempt: attempt, ForNs: s.num("for", 0)}}
	}
	return op
}

// showQuarantine shows what is in quarantine, and until when.
func (s *script) showQuarantine(b *strings.Builder) {
	for p := range s.c.Quarantined() {
		q := p.quarantineProto(s.c)
		fmt.Fprintf(b, "%v.%d on %s by %q for %d s more (%s)\n", p.TaskID(), p.attempt, p.machine.name, q.User, q.LeftNs/second, q.Reason)
	}
}

package cell

import (
	"fmt"
	"strings"

	"borg/proto/borgpb"
)

// collapse reads: collapse BAND...
func (s *script) collapse() *borgpb.Op {
	o := &borgpb.SetPreemptionPolicy{}
	for _, a := range s.d.CmdArgs {
		if len(a.Vals) == 0 {
			o.Collapse = append(o.Collapse, borgpb.Band(borgpb.Band_value["BAND_"+strings.ToUpper(a.Key)]))
		}
	}
	return &borgpb.Op{Reason: s.arg("reason", ""), Op: &borgpb.Op_SetPreemptionPolicy{SetPreemptionPolicy: o}}
}

// preempts reads: own never wait=N notice=N signal.
func (s *script) preempts(spec *borgpb.JobSpec) {
	spec.PreemptWaitNs, spec.Task.NoticeNs, spec.Task.NoticeSignal = s.num("wait", 0), s.num("notice", 0), s.has("signal")
	switch {
	case s.has("own"):
		spec.Preempt = borgpb.Preempt_PREEMPT_OWN
	case s.has("never"):
		spec.Preempt = borgpb.Preempt_PREEMPT_NEVER
	}
}

// noticeText is what a stopping copy is told ahead.
func noticeText(p *Copy) string {
	if p.NoticeNs() == 0 {
		return ""
	}
	return fmt.Sprintf(" notice %ds", p.NoticeNs()/second)
}

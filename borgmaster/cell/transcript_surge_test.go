package cell

import (
	"fmt"
	"strings"

	"borg/proto/borgpb"
)

// pace reads what format 8 added to an update: spread[=KEY] surge=N gate least=N most=N
// fail-after=SPAN.
func (s *script) pace(p *borgpb.UpdatePolicy) {
	if s.has("spread") {
		p.Order = borgpb.UpdateOrder_UPDATE_ORDER_SPREAD
	}
	p.SpreadBy, p.Surge = s.arg("spread-by", s.arg("spread", "")), uint32(s.num("surge", 0))
	if !s.has("gate") {
		return
	}
	p.Gate = &borgpb.MetricGate{Url: s.arg("gate", ""), Query: "up", FailAfterNs: s.num("fail-after", 0)}
	if s.has("least") {
		p.Gate.LeastMicro = new(s.num("least", 0))
	}
	if s.has("most") {
		p.Gate.MostMicro = new(s.num("most", 0))
	}
}

// judge reads: judge USER/JOB pass|fail|unknown WORDS [update=UID].
func (s *script) judge() *borgpb.Op {
	user, name := s.key()
	o := &borgpb.JudgeGate{User: user, Name: name, UpdateUid: s.arg("update", ""), Words: s.arg("words", ""),
		Verdict: borgpb.GateVerdict(borgpb.GateVerdict_value["GATE_VERDICT_"+strings.ToUpper(s.first(1))])}
	if j := s.c.Job(JobKey{user, name}); j != nil && j.update != nil && o.UpdateUid == "" {
		o.UpdateUid = j.update.uid.String()
	}
	return &borgpb.Op{Op: &borgpb.Op_JudgeGate{JudgeGate: o}}
}

// showGated lists the updates that wait for an answer.
func (s *script) showGated(b *strings.Builder) {
	for j, g := range s.c.Gated() {
		fmt.Fprintf(b, "%v asks %s: %s\n", j.Key(), g.Url, g.Query)
	}
}

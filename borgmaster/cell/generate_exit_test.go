package cell

import "borg/proto/borgpb"

// exitReason has a borglet say now and then why it ended a process.
func (g *generator) exitReason(r *borgpb.TaskReport) {
	if g.c.format < FormatExitReasons || !g.one(6) {
		return
	}
	if g.c.format >= FormatExitWays && g.one(3) {
		r.OomKills, r.Text = 1<<g.r.IntN(4), "the kernel has killed some; "+pick(g.r, []string{"slow", "unhealthy"})
	}
	if r.Exit == nil {
		r.Exit = &borgpb.Exit{Signal: 15}
	}
	if g.c.format >= FormatExitWays && g.one(2) {
		r.Exit.Oom, r.Exit.ReasonCode = true, borgpb.ExitReason_EXIT_REASON_CHILD_OUT_OF_MEMORY
		r.Exit.OomProcess, r.Exit.OomBytes = "worker", g.r.Int64N(1<<30)
	}
	r.Exit.Reason = pick(g.r, []string{"unhealthy: GET /healthz of port http: 500", "unhealthy: no answer within 5s"})
}

package cell

import "borg/proto/borgpb"

// local has some tasks see files, be asked whether they are ready, and have packages that
// are brought by a secret.
func (g *generator) local(t *borgpb.TaskSpec) {
	if g.c.format < FormatPushed {
		return
	}
	if g.one(15) {
		t.Files = []*borgpb.PushedFile{{Name: "conf/a", Signal: borgpb.ReloadSignal(g.r.IntN(4))}}
	}
	if g.one(15) {
		t.Ready = &borgpb.HealthCheck{HttpPath: "/ready", PeriodNs: int64(g.r.IntN(3)) * second}
	}
	if len(t.Packages) > 0 && g.one(4) {
		t.Packages[0].Credentials = "db"
	}
}

package borgmaster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/pages"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// nearEdgePercent is how much of a budget or quota is used when that is told.
	nearEdgePercent = 90
	// lateShard is how late polls begin when that is told: a machine at rest is polled every
	// two seconds.
	lateShard = time.Second
	// lateIntervalPercent is how long the interval between polls is, of what it should be,
	// when that is told.
	lateIntervalPercent = 150
	// machinesAtOnce is how many machines one turn looks at.
	machinesAtOnce = 1_000
	// maxNearEdges and maxSilentShown bound what is told of each kind.
	maxNearEdges, maxSilentShown = 20, 5
)

// Examine answers with the findings of this replica's status page, with those that a
// user can do something about: budgets that are nearly used up, machines that are
// silent, polls that are late.
func (a *masterAPI) Examine(ctx context.Context, _ *borgrpc.ExamineRequest) (*borgrpc.ExamineResponse, error) {
	l := a.m.look()
	l.named = true
	v := l.verdict()
	l.judgePolls(&v)
	if l.elected() {
		if err := l.judgeDrains(ctx, &v); err != nil {
			return nil, err
		}
		if err := l.judgePorts(ctx, &v); err != nil {
			return nil, err
		}
		if err := l.judgeBudgets(ctx, &v, door.Caller(ctx)); err != nil {
			return nil, err
		}
	}
	resp := &borgrpc.ExamineResponse{Replica: a.m.cfg.Replica, Elected: l.elected()}
	for _, f := range v.Findings {
		severity := borgrpc.Severity_SEVERITY_WARNING
		if f.Mood == pages.Bad {
			severity = borgrpc.Severity_SEVERITY_FAULT
		}
		next := f.Next
		if section, ok := strings.CutPrefix(next, "below: "); ok {
			var command string
			if section, command, ok = strings.Cut(section, "; "); ok {
				next = "see: " + command
			} else {
				next = "see " + section + " on the status page of the replica, at the address of its --http"
			}
		}
		resp.Findings = append(resp.Findings, &borgrpc.Finding{Severity: severity, Text: f.Text, Next: next})
	}
	slices.SortStableFunc(resp.Findings, func(a, b *borgrpc.Finding) int { return int(b.Severity) - int(a.Severity) })
	return resp, nil
}

// moreProcessor is what helps a master that is late. One more on the same processor makes it worse.
const moreProcessor = "right after a start it goes by itself; otherwise give the masters more processor, or add masters on other machines: borgcfg master grow ADDRESS..."

// judgePolls names machines that do not answer, and says when polls are late.
func (l *look) judgePolls(v *pages.Verdict) {
	if worst := l.shard.MissedWorst; len(worst) > 0 {
		var names []string
		for _, m := range worst[:min(len(worst), maxSilentShown)] {
			names = append(names, fmt.Sprintf("%s (%d polls in a row: %s)", m.Machine, m.Times, m.Err))
		}
		if more := l.shard.Missed - len(names); more > 0 {
			names = append(names, fmt.Sprintf("%d more", more))
		}
		v.Found(pages.Warn, "start the borglet there: what was started elsewhere meanwhile it ends; what may run there: borgcfg machine list "+worst[0].Machine+"; if it never comes back: borgcfg machine remove "+worst[0].Machine+" --force", "Machines that do not answer: %s.", strings.Join(names, ", "))
	}
	if l.shard.Lag >= lateShard {
		v.Found(pages.Warn, moreProcessor, "This replica polls its %d machines %s later than they are due.", l.shard.Share, pages.Span(l.shard.Lag).Text)
	}
	if s := &l.shard; s.Share > 0 && s.Interval > s.RestInterval*lateIntervalPercent/100 {
		late := ""
		if s.Late >= time.Millisecond {
			late = "; its timers fire up to " + pages.Span(s.Late).Text + " late"
		}
		v.Found(pages.Warn, moreProcessor, "This replica is short of processor, or was moments ago: it polls each of its %d machines every %s, and not every %s%s.",
			s.Share, pages.Span(s.Interval).Text, pages.Span(s.RestInterval).Text, late)
	}
}

// eachMachine calls f with each machine by name, in turns of machinesAtOnce, until it returns false.
func (l *look) eachMachine(ctx context.Context, f func(c *cell.Cell, m *cell.Machine) bool) error {
	after := ""
	for more := true; more; {
		err := l.m.viewMuch(ctx, func(c *cell.Cell) error {
			more = false
			n := 0
			for m := range c.MachinesAfter(after) {
				if n++; n > machinesAtOnce {
					more = true
					break
				}
				if after = m.Name(); !f(c, m) {
					break
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// judgeDrains says that all machines which are up are draining: what waits goes on waiting.
func (l *look) judgeDrains(ctx context.Context, v *pages.Verdict) error {
	draining, open, first := 0, false, ""
	err := l.eachMachine(ctx, func(_ *cell.Cell, m *cell.Machine) bool {
		switch {
		case !m.Up():
		case m.Draining():
			draining, first = draining+1, cmp.Or(first, m.Name())
		default:
			open = true
		}
		return !open
	})
	if !open && draining > 0 {
		v.Found(pages.Warn, "borgcfg machine undrain "+first, "No machine takes tasks: %s up, and all are draining.", pages.Some(int64(draining), "machine")+" "+one(int64(draining), "is", "are"))
	}
	return err
}

// judgePorts names machines on which other programs hold ports that tasks could have.
func (l *look) judgePorts(ctx context.Context, v *pages.Verdict) error {
	var words []string
	more, first := 0, ""
	err := l.eachMachine(ctx, func(c *cell.Cell, m *cell.Machine) bool {
		held := c.HeldPortsWords(m)
		switch {
		case held == "":
		case len(words) == maxSilentShown:
			more++
		default:
			words, first = append(words, held), cmp.Or(first, m.Name())
		}
		return true
	})
	if more > 0 {
		words = append(words, fmt.Sprintf("%d more machines", more))
	}
	if len(words) > 0 {
		v.Found(pages.Warn, "stop those programs, or give the borglet other --task-ports; until when each port is left out: borgcfg machine list "+first,
			"Other programs hold ports that tasks could be granted; tasks get other ports: %s.", strings.Join(words, "; "))
	}
	return err
}

// judgeBudgets names whose share of the replicated state, or whose quota, is nearly used
// up: of all users to an admin, and of the caller to everybody else.
func (l *look) judgeBudgets(ctx context.Context, v *pages.Verdict, caller identity.Name) error {
	return l.m.viewMuch(ctx, func(c *cell.Cell) error {
		user := caller.User()
		if c.Has(user, cell.Admin) {
			user = ""
		}
		resp := &borgrpc.ListQuotasResponse{}
		listQuotas(c, user, resp)
		told := 0
		found := func(next, format string, args ...any) {
			if told++; told <= maxNearEdges {
				v.Found(pages.Warn, next, format, args...)
			}
		}
		for _, share := range append(resp.Shares, resp.Cell) {
			whose, next := "User "+share.User, "borgcfg quota show "+share.User
			if share.User == "" {
				whose, next = "The cell", "borgcfg quota list"
			}
			for _, h := range share.Held {
				if !cell.Forgets(h.Measure) && h.Used*100 >= (h.Allowed-h.Reserved)*nearEdgePercent && h.Used > 0 {
					found(next, "%s holds %d of %d %s.", whose, h.Used, h.Allowed, cell.MeasureName(h.Measure))
				}
			}
		}
		for _, q := range resp.Quotas {
			if q.Expired {
				found("borgcfg quota set "+q.User+" "+cell.BandName(q.Band)+" --for 90d", "The quota of user %s for %s has expired; nothing new is admitted by it.", q.User, cell.BandName(q.Band))
			}
			if words := nearQuota(q); words != "" && resp.Enforced && !q.Expired {
				found("borgcfg quota show "+q.User, "Jobs and alloc sets of user %s ask for %s of the quota for %s.", q.User, words, cell.BandName(q.Band))
			}
		}
		if told > maxNearEdges {
			v.Found(pages.Warn, "borgcfg quota list", "%d budgets and quotas more are nearly used up.", told-maxNearEdges)
		}
		return nil
	})
}

// nearQuota says which amounts of a quota are nearly used up, as "98 % of memory"; empty: none.
func nearQuota(q *borgrpc.QuotaUse) string {
	var words []string
	for _, a := range []struct {
		what        string
		used, limit int64
	}{
		{"cpu", q.Used.GetCpuMilli(), q.Limit.GetCpuMilli()},
		{"memory", q.Used.GetMemBytes(), q.Limit.GetMemBytes()},
		{"disk", q.Used.GetDiskBytes(), q.Limit.GetDiskBytes()},
	} {
		// In floating point, because a limit may be larger than a hundredth of what fits into 64 bits.
		if percent := 100 * float64(a.used) / float64(a.limit); a.limit > 0 && percent >= nearEdgePercent {
			words = append(words, fmt.Sprintf("%.0f %% of %s", percent, a.what))
		}
	}
	return strings.Join(words, " and ")
}

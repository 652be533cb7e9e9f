package cell

import (
	"borg/proto/borgpb"
)

// quotaOp grants and takes back, enforces and does not, bounds tasks.
func (g *generator) quotaOp() *borgpb.Op {
	user := pick(g.r, []string{"ann", "ann", "bob", "bob", "u", "Not-A-Label"})
	band := pick(g.r, []borgpb.Band{1, 2, 2, 3, 4, 4, 5, 0, 9})
	some := func(n int64) *borgpb.Resources {
		r := &borgpb.Resources{CpuMilli: n * int64(g.r.IntN(2000)), MemBytes: n * int64(g.r.IntN(4)) << 28, DiskBytes: int64(g.r.IntN(4)) << 32}
		if g.one(3) {
			r.Devices = map[string]int64{"gpu": int64(g.r.IntN(4))}
		}
		return r
	}
	var op borgpb.Op
	if g.c.format >= FormatStateBudgets && g.one(3) {
		op.Op = &borgpb.Op_SetStateBudget{SetStateBudget: g.stateBudget(user)}
		return g.user(&op)
	}
	switch n := g.r.IntN(10); {
	case n < 6:
		o := &borgpb.SetQuota{User: user, Band: band, Limit: some(pick(g.r, []int64{1, 8, 60}))}
		if g.one(2) {
			o.ExpiresWallNs = g.wallNs + int64(g.r.IntN(200)-10)*second
		}
		if g.one(20) {
			o.Limit.CpuMilli = pick(g.r, []int64{-1, 1 << 62, maxQuotaAmount})
		}
		if cpu := o.Limit.CpuMilli; g.c.format >= formatNamedAmounts && cpu%4 == 1 {
			o.Only = twoFrom(cpu, "cpu", "mem", "disk", "device/gpu", "expires")
		}
		op.Op = &borgpb.Op_SetQuota{SetQuota: o}
	case n < 7:
		op.Op = &borgpb.Op_DeleteQuota{DeleteQuota: &borgpb.DeleteQuota{User: user, Band: band}}
	case n < 8:
		o := &borgpb.SetQuotaPolicy{}
		if !g.one(3) {
			o.Enforce = new(g.one(2))
		}
		if g.one(2) {
			o.Oversell = []*borgpb.Oversell{{Band: band, Milli: pick(g.r, []uint32{0, 500, 100_000, maxOversell, maxOversell + 1})}}
		}
		op.Op = &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: o}
	default:
		o := &borgpb.SetTaskLimits{User: user}
		if !g.one(4) {
			o.Max = some(40)
		}
		if g.one(6) {
			o.Min = &borgpb.Resources{CpuMilli: int64(g.r.IntN(100))}
		}
		if g.one(6) {
			o.Default = &borgpb.Resources{CpuMilli: int64(g.r.IntN(200)), Ports: int64(g.r.IntN(10) / 9)}
		}
		if cpu := o.Max.GetCpuMilli(); g.c.format >= formatNamedAmounts && cpu%3 == 1 {
			o.Only = twoFrom(cpu, "max/cpu", "max/mem", "min/cpu", "default/cpu", "max/device/gpu")
		}
		op.Op = &borgpb.Op_SetTaskLimits{SetTaskLimits: o}
	}
	return g.user(&op)
}

// twoFrom picks two of some names by a number, at times the same one.
func twoFrom(n int64, names ...string) []string {
	of := int64(len(names))
	return []string{names[n/16%of], names[n/128%of]}
}

// stateBudget gives a user, or all, a budget that the walk meets the edge of, or takes it
// back.
func (g *generator) stateBudget(user string) *borgpb.SetStateBudget {
	o := &borgpb.SetStateBudget{User: user}
	if g.one(4) {
		o.User = ""
	}
	for _, m := range Measures {
		if !g.one(3) {
			continue
		}
		n := pick(g.r, []int64{0, 0, int64(g.r.IntN(10)), int64(g.r.IntN(60)), measures[m].cell})
		if m == measureBytes || m == measureDeadBytes {
			n *= pick(g.r, []int64{1, 2 * runBytes})
		}
		if m == measureRequests {
			// With a handful, most retries would be too old.
			n = pick(g.r, []int64{0, 0, 1000 + int64(g.r.IntN(1000))})
		}
		if g.one(50) {
			n = measures[m].cell + 1
		}
		o.Amounts = append(o.Amounts, &borgpb.StateAmount{Measure: m, Amount: n})
	}
	return o
}

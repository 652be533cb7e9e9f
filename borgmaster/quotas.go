package borgmaster

import (
	"cmp"
	"context"
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// ListQuotas tells what users may ask for at one time, and what they do.
func (a *masterAPI) ListQuotas(ctx context.Context, req *borgrpc.ListQuotasRequest) (*borgrpc.ListQuotasResponse, error) {
	user, err := ownUser(ctx, req.GetUser(), "quotas")
	if err != nil {
		return nil, err
	}
	if err := a.m.readIndex(ctx); err != nil {
		return nil, err
	}
	resp := &borgrpc.ListQuotasResponse{}
	err = a.m.viewMuch(ctx, func(c *cell.Cell) error {
		lens := a.m.lens(ctx, c)
		if lens != nil {
			user = cmp.Or(user, door.Caller(ctx).User())
		}
		if !lens.User(user) {
			// As of a user of whom the cell has never heard.
			resp.Index, resp.Enforced = c.Index(), c.QuotasEnforced()
			listTotals(c, resp)
			return nil
		}
		listQuotas(c, user, resp)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return whole(resp, "quotas")
}

func listQuotas(c *cell.Cell, user string, resp *borgrpc.ListQuotasResponse) {
	resp.Index, resp.Enforced = c.Index(), c.QuotasEnforced()
	users := []string{user}
	if user == "" {
		users = c.ChargedUsers()
		for q := range c.Quotas() {
			users = append(users, q.User())
		}
		slices.Sort(users)
		users = slices.Compact(users)
	}
	for _, user := range users {
		for _, band := range cell.Bands {
			if u := quotaUse(c, user, band); u != nil {
				resp.Quotas = append(resp.Quotas, u)
			}
		}
	}
	for b := range c.TaskBounds() {
		if user == "" || b.User() == user {
			resp.Bounds = append(resp.Bounds, &borgrpc.TaskBounds{
				User: b.User(), Min: b.Min().Proto(), Default: b.Default().Proto(), Max: b.Max().Proto(),
			})
		}
	}
	listShares(c, user, resp)
	listTotals(c, resp)
}

// listTotals tells what is sold of the cell, and what it holds of the replicated state.
func listTotals(c *cell.Cell, resp *borgrpc.ListQuotasResponse) {
	resp.Cell = &borgrpc.StateShare{}
	used := c.CellStateUse()
	for _, m := range cell.Measures {
		total, reserved := cell.StateTotal(m)
		resp.Cell.Held = append(resp.Cell.Held, &borgrpc.StateHeld{Measure: m, Used: used[m], Allowed: total, Reserved: reserved})
	}
	for _, band := range cell.Bands {
		if band != borgpb.Band_BAND_MONITORING {
			resp.Sold = append(resp.Sold, &borgrpc.SoldBand{
				Band: band, OversellMilli: c.Oversell(band), Sold: c.SoldOf(band).Proto(), Cell: c.QuotaCapacity().Proto(),
			})
		}
	}
}

// listShares tells what a user, or each of them, holds of the replicated state.
func listShares(c *cell.Cell, user string, resp *borgrpc.ListQuotasResponse) {
	users := []string{user}
	if user == "" {
		users = c.StateUsers()
	}
	for _, one := range users {
		share, used := &borgrpc.StateShare{User: one}, c.StateUseOf(one)
		for _, m := range cell.Measures {
			// A list of all users says who holds much: the answer has a bound.
			if n, most := used[m], c.StateBudget(one, m); user != "" || n*100 >= most || c.HasStateBudget(one, m) {
				share.Held = append(share.Held, &borgrpc.StateHeld{Measure: m, Used: n, Allowed: most})
			}
		}
		if len(share.Held) > 0 {
			resp.Shares = append(resp.Shares, share)
		}
	}
}

// quotaUse is nil when there is nothing to say.
func quotaUse(c *cell.Cell, user string, band borgpb.Band) *borgrpc.QuotaUse {
	q, used := c.QuotaOf(user, band), c.ChargeOf(user, band)
	if q == nil && used.IsZero() {
		return nil
	}
	u := &borgrpc.QuotaUse{User: user, Band: band, Used: used.Proto()}
	if q != nil {
		u.Limit, u.ExpiresWallNs, u.Expired = q.Limit().Proto(), q.ExpiresWallNs(), c.Expired(q)
		u.By, u.Reason, u.SetWallNs = q.By(), q.Reason(), q.SetWallNs()
	}
	return u
}

package door

import (
	"testing"

	"borg/identity"
)

// ReceivingOfUser is maxReceivingOfUser.
const ReceivingOfUser = maxReceivingOfUser

const (
	MaxPagesAtOnce = maxPagesAtOnce
	AllPagesAtOnce = allPagesAtOnce
)

// NewPageBudgets returns the budgets of a listener for pages.
func NewPageBudgets() (allow func(caller string) bool) { return newPagePace().allow }

// StallCalls begins calls on each of some connections whose messages say that they have
// so many bytes, and sends all but the last one of each. It stops where the server closes
// a connection or a call ends early.
func StallCalls(t *testing.T, addr string, who *identity.Source, method string, size, conns, calls int) (stop func()) {
	t.Helper()
	var raw []*rawConn
	for range conns {
		c := dialRaw(t, addr, who, identity.Name{Cell: who.Name().Cell, Role: identity.Master})
		raw = append(raw, c)
		for range calls {
			if c.stall(method, size) != nil {
				break
			}
		}
	}
	return func() {
		for _, c := range raw {
			c.conn.Close()
		}
	}
}

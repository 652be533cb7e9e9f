package admission

// budget is an amount that comes back with time: the time at which it will be whole again. All
// that is taken of it is counted in the time that it takes to come back.
type budget int64

// take takes what comes back in costNs, of a budget that comes back in wholeNs. If there is less
// now it takes nothing, and returns after which time there will be enough.
func (b *budget) take(now, costNs, wholeNs int64) (waitNs int64) {
	after := *b
	after.spend(now, costNs)
	if wait := int64(after) - now - wholeNs; wait > 0 {
		return wait
	}
	*b = after
	return 0
}

// spend takes what comes back in costNs, whether or not there is as much.
func (b *budget) spend(now, costNs int64) { *b = budget(max(int64(*b), now) + costNs) }

// giveBack returns what take took.
func (b *budget) giveBack(costNs int64) { *b = max(*b-budget(costNs), 0) }

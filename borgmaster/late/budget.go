package late

// Budget is the share of time that periodic work may take, in per cent from 1 to 100. Work
// that needs more time than its budget runs less often, and so leaves the processor to work
// that cannot wait.
type Budget int64

// WaitNs returns the time from the end of a round to the start of the next one. Rounds
// start every periodNs while they keep to the budget; the last one took tookNs.
func (b Budget) WaitNs(periodNs, tookNs int64) int64 {
	return max(periodNs-tookNs, tookNs*(100-int64(b))/int64(b))
}

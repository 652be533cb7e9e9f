package late

// Budget is the share of time, in per cent, that periodic work may take. Work that takes
// longer, because there is more of it or the processor is short, comes less often. So
// what can wait leaves the processor to what cannot.
type Budget int64

// WaitNs returns the time from the end of a round to the start of the next one, for rounds
// of a period of which the last took tookNs.
func (b Budget) WaitNs(periodNs, tookNs int64) int64 {
	return max(periodNs-tookNs, tookNs*(100-int64(b))/int64(b))
}

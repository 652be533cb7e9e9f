package reservation

import "math/bits"

// roots[k] is 2^32 / 2^(1/2^(k+1)), rounded down.
var roots = [16]uint64{
	3037000499, 3611622602, 3938502375, 4112874773, 4202935003, 4248701964, 4271771996, 4283353945,
	4289156690, 4292061009, 4293513906, 4294240539, 4294603902, 4294785595, 4294876444, 4294921870,
}

// left is what is left of gap when it halves every half-life, rounded down. It
// is less than gap as soon as any time counts, so that a decay in many small
// steps comes to its end too.
func left(gap, elapsedNs, halfLifeNs int64) int64 {
	halves := elapsedNs / halfLifeNs
	if halves >= 63 {
		return 0
	}
	part := uint64(mulDiv(elapsedNs%halfLifeNs, 1<<16, halfLifeNs))
	factor := uint64(1) << 32
	for k, root := range roots {
		if part&(1<<15>>k) != 0 {
			factor = factor * root >> 32
		}
	}
	hi, lo := bits.Mul64(uint64(gap), factor)
	return int64((hi<<32 | lo>>32) >> halves)
}

// mulDiv is a*b/c, rounded down, for amounts that are not negative and a result
// below 2^63.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(q)
}

// Package reservation estimates what tasks will use, so that what they asked
// for and do not use can be given to others (paper §5.5).
//
// Two kinds of estimate stand side by side. A Task is the paper's reservation of
// one task: its limit at first, then slowly down to what it uses plus a margin,
// and up at once when it uses more. A Predictor looks at all tasks of a machine
// together and predicts the peak of their sum, which is less than the sum of
// their peaks. Reservations are a Predictor too, so that the two can be measured
// on the same machines.
//
// It is pure: no clock, no floating point, no map order that reaches a result.
// The same samples give the same estimates on any machine. An estimate is above
// the limit only where use is.
package reservation

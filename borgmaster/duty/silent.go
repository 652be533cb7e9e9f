package duty

import "slices"

const (
	// A machine is told to schedulers as silent when it has been for so long and has
	// missed so many polls: earlier than it is called down, for nothing starts there.
	silentToldNs     = int64(3e9)
	silentToldMisses = uint32(2)
	// So many are told at most.
	maxSilentTold = 4096
)

// Silent names the machines that are not down and have been silent for some seconds, in
// the order of their names.
func (d *Core) Silent(now int64) (names []string) {
	for name, m := range d.missing {
		if m.up && m.missed >= silentToldMisses && now-m.silentSinceNs >= silentToldNs {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names[:min(len(names), maxSilentTold)]
}

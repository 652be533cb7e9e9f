package sim

import "fmt"

// shape bends what a seed is made of towards an aim, which is known by its
// name; empty: none.
func shape(aim string, s *swarm) error {
	if aim == "" {
		return nil
	}
	return fmt.Errorf("aim %q is not known; leave it out, there are none yet", aim)
}

package identity

import (
	"fmt"
	"time"
)

// EndedError says that no key of an authority is valid any more: nobody of its cell
// believes anybody.
type EndedError struct {
	Cell  string
	Ended time.Time
}

func (e *EndedError) Error() string {
	return fmt.Sprintf("the authority of cell %s ended at %s, and nothing that it issued counts", e.Cell, e.Ended.UTC().Format(time.RFC3339))
}

// Ends is when the last of the authority's keys is not believed any more, one that is to
// issue later among them.
func (a *Authority) Ends() (end time.Time) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, s := range a.signers {
		if e := s.end(); e.After(end) {
			end = e
		}
	}
	return end
}

// end is when a key is not believed any more.
func (s signer) end() time.Time {
	if s.until.IsZero() || s.until.After(s.cert.NotAfter) {
		return s.cert.NotAfter
	}
	return s.until
}

// Renewed is what an authority that has ended becomes: a new key alone, which issues at
// once. While one lives it is Replaced, so that nobody becomes a stranger.
func (a *Authority) Renewed(now time.Time) (*Authority, error) {
	if end := a.Ends(); now.Before(end) {
		return nil, fmt.Errorf("the authority of cell %s has not ended; it does at %s", a.cell, end.UTC().Format(time.RFC3339))
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	next, err := a.newSigner(now)
	if err != nil {
		return nil, fmt.Errorf("make the next authority of cell %s: %w", a.cell, err)
	}
	return &Authority{cell: a.cell, rand: a.rand, generation: a.generation + 1, signers: []signer{next}}, nil
}

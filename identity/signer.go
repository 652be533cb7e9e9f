package identity

import "time"

// Signer is one key of an authority, for people.
type Signer struct {
	Fingerprint []byte
	// DER.
	Certificate []byte
	// It issues from then on; zero: it always did. It is not believed from then on;
	// its certificate's end when nothing else was said.
	From, Until time.Time
	// It is the one that issues now.
	Issues bool
}

// Signers are all keys of the authority, oldest first.
func (a *Authority) Signers(now time.Time) []Signer {
	a.mu.RLock()
	defer a.mu.RUnlock()
	issuer := a.issuer(now)
	var all []Signer
	for _, s := range a.signers {
		all = append(all, Signer{Fingerprint: Fingerprint(s.cert.Raw), Certificate: s.cert.Raw, From: s.from, Until: s.end(), Issues: s.cert == issuer.cert})
	}
	return all
}

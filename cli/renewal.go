package cli

import (
	"log/slog"
	"time"

	"borg/identity"
)

// LogRenewal is a Source's OnRenew: an operator should hear of renewals that
// fail while there is still time.
func LogRenewal(logger *slog.Logger) func(*identity.Credential, error) {
	return func(c *identity.Credential, err error) {
		if err != nil {
			logger.Warn("certificate not renewed", "err", err)
			return
		}
		logger.Debug("certificate renewed", "until", c.Expires().UTC().Format(time.RFC3339))
	}
}

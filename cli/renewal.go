package cli

import (
	"log/slog"
	"time"

	"borg/identity"
)

// LogRenewal is a Source's OnRenew: an operator should hear of renewals that
// fail while there is still time, and what to do when there is none any more.
func LogRenewal(logger *slog.Logger, own *identity.Source, afterwards string) func(*identity.Credential, error) {
	return func(c *identity.Credential, err error) {
		switch {
		case err == nil:
			logger.Debug("certificate renewed", "until", c.Expires().UTC().Format(time.RFC3339))
		case own.Current().Expired(time.Now()):
			logger.Error("certificate expired: nobody believes it", "err", err, "next", afterwards)
		default:
			logger.Warn("certificate not renewed", "err", err)
		}
	}
}

package main

import (
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/reclaim"
	"borg/cli"
	"borg/scheduler/reservation"
)

const (
	// Bounds of the times that reservations are made with. Use is told every 5 s: below
	// a second a time means nothing.
	minReservationTime, maxReservationTime = time.Second, 7 * 24 * time.Hour
)

// reservationFlags say how reservations are made while this replica is elected.
func reservationFlags() []ucli.Flag {
	usual := reservation.Medium.Config()
	return []ucli.Flag{
		&ucli.StringFlag{Name: "reservations", Value: reservation.Medium.String(), Usage: "how much tasks reserve beyond what they use: conservative, medium, aggressive, or off, which is their limits; `SETTING` of the elected master counts, here and below"},
		&ucli.DurationFlag{Name: "reservation-hold", Value: time.Duration(usual.HoldNs), Usage: "a task reserves its limit for so much `TIME` from its start"},
		&ucli.DurationFlag{Name: "reservation-half-life", Value: time.Duration(usual.HalfLifeNs), Usage: "then what it reserves beyond its use and the margin halves in so much `TIME`"},
	}
}

// reservationConfig reads them.
func reservationConfig(ctx *ucli.Context) (reclaim.Config, error) {
	cfg, err := reclaim.ParseConfig(ctx.String("reservations"))
	if err != nil {
		return cfg, cli.Errorf(cli.Usage, "--reservations: %w", err)
	}
	for _, name := range []string{"reservation-hold", "reservation-half-life"} {
		if d := ctx.Duration(name); d < minReservationTime || d > maxReservationTime {
			return cfg, cli.Errorf(cli.Usage, "--%s %s: want %s to %s", name, d, minReservationTime, maxReservationTime)
		}
	}
	with := cfg.Setting.Config()
	with.HoldNs, with.HalfLifeNs = int64(ctx.Duration("reservation-hold")), int64(ctx.Duration("reservation-half-life"))
	cfg.Instead = &with
	return cfg, nil
}

//go:build plaintext

package door

import (
	"fmt"
	"io"
	"net"

	"borg/identity"
)

// plaintext is true in builds that measure what TLS costs, and in no other. Such a
// build believes whoever says who he is: it must never serve anybody.
const plaintext = true

// plainHandshake says who one is, and hears it of the other end.
func plainHandshake(conn net.Conn, own identity.Name, answers bool) (identity.Name, error) {
	var other identity.Name
	say := func() error {
		name := own.String()
		_, err := conn.Write(append([]byte{byte(len(name))}, name...))
		return err
	}
	hear := func() (err error) {
		head := make([]byte, 1)
		if _, err = io.ReadFull(conn, head); err != nil {
			return err
		}
		text := make([]byte, head[0])
		if _, err = io.ReadFull(conn, text); err != nil {
			return err
		}
		other, err = identity.ParseName(string(text))
		return err
	}
	steps := []func() error{say, hear}
	if answers {
		steps = []func() error{hear, say}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return identity.Name{}, fmt.Errorf("say who one is: %w", err)
		}
	}
	return other, nil
}

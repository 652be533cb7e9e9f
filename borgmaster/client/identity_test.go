package client

import (
	"crypto/rand"
	"testing"
	"time"

	"borg/identity"
)

// ca is the authority of the cell "test".
var ca = func() *identity.Authority {
	a, err := identity.NewAuthority("test", time.Now(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return a
}()

// source is who somebody of the cell is.
func source(t testing.TB, role identity.Role, id string) *identity.Source {
	t.Helper()
	s, err := ca.Source(identity.Name{Cell: "test", Role: role, ID: id}, time.Now(), identity.Life)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

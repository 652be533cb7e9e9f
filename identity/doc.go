// Package identity says who is who in a cell: names, the certificates that
// prove them, the cell's own authority that issues those, and a source that
// keeps one of them fresh.
//
// A name is a URI, "spiffe://<cell>/<role>/<who>". A certificate has exactly
// one, and nothing else that names anybody. It lives for an hour (a person's for
// a working day, a borglet's for a week) and is renewed at half its life, so that
// what was stolen is soon worth nothing.
//
// Names, authority and verification are pure: time and randomness are given.
// Only Source keeps time. The package decides who somebody is; what he may do is
// decided in proto/door and borgmaster. It must not dial, listen or log.
package identity

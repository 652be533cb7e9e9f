//go:build !plaintext

package replica

// benchMode is what figures begin with that are measured with and without TLS.
const benchMode = "tls."

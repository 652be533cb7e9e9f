//go:build plaintext

package replica

const benchMode = "plain."

package packages

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"regexp"
	"strings"
)

var digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Digest names content: "sha256:" and 64 hexadecimal digits.
type Digest string

// ParseDigest reads a digest. It becomes part of paths, so nothing else is let in.
func ParseDigest(text string) (Digest, error) {
	if !digestPattern.MatchString(text) {
		return "", fmt.Errorf("digest %.100q: want sha256: and 64 hexadecimal digits in lower case", text)
	}
	return Digest(text), nil
}

// hex is the digest as a file name.
func (d Digest) hex() string { return strings.TrimPrefix(string(d), "sha256:") }

func digestOf(content []byte) Digest {
	sum := sha256.Sum256(content)
	return Digest("sha256:" + hex.EncodeToString(sum[:]))
}

// hashOf reads r to its end.
func hashOf(r io.Reader) (Digest, int64, error) {
	h := sha256.New()
	n, err := io.Copy(h, r)
	return Digest("sha256:" + hex.EncodeToString(h.Sum(nil))), n, err
}

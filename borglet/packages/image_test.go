package packages

import (
	"fmt"
	"strings"
	"testing"
)

// FuzzManifest: whatever a registry says of an image is refused, or names things by
// digests, with sizes, within the bounds.
func FuzzManifest(f *testing.F) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	layer := `{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"` + digest + `","size":9}`
	f.Add([]byte(`{"schemaVersion":2,"config":{"digest":"`+digest+`","size":7},"layers":[`+layer+`]}`), "amd64")
	f.Add([]byte(`{"manifests":[{"digest":"`+digest+`","size":7,"platform":{"os":"linux","architecture":"amd64"}}]}`), "amd64")
	f.Add([]byte(`{"config":{"digest":"sha256:../../x","size":-1,"urls":["http://x"]},"layers":[{}]}`), "arm64")
	f.Add([]byte(`{"os":"linux","architecture":"arm64","layers":[],"manifests":[{"platform":null}]}`), "arm64")
	f.Fuzz(func(t *testing.T, text []byte, arch string) {
		_ = checkPlatform(text, arch)
		m, next, err := readManifest(text, arch)
		if err != nil {
			if m != nil || len(err.Error()) > 2000+len(arch) {
				t.Errorf("refused with %v, %d bytes of text", m, len(err.Error()))
			}
			return
		}
		blobs := []blob{next}
		if m != nil {
			blobs = append([]blob{m.config}, m.layers...)
			if len(m.layers) == 0 || len(m.layers) > maxLayers {
				t.Errorf("it has %d layers", len(m.layers))
			}
		}
		for i, b := range blobs {
			if again, err := ParseDigest(string(b.Digest)); err != nil || again != b.Digest || b.Bytes <= 0 {
				t.Errorf("it names %v (%v)", b, err)
			}
			if name := fmt.Sprint(b.Digest); strings.ContainsAny(name, "/\x00") || (i == 0 && b.Bytes > maxManifestBytes) {
				t.Errorf("it names %v", b)
			}
		}
	})
}

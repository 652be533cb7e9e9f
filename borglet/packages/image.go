package packages

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// blob is content that a manifest names.
type blob struct {
	Digest Digest `json:"digest"`
	Bytes  int64  `json:"bytes"`
}

// manifest is what an image consists of; layers from the lowest to the highest.
type manifest struct {
	config blob
	layers []blob
}

// descriptor and document are what is read of the JSON of OCI and Docker.
type descriptor struct {
	MediaType string      `json:"mediaType"`
	Digest    string      `json:"digest"`
	Size      int64       `json:"size"`
	URLs      few[string] `json:"urls"`
	Platform  *platform   `json:"platform"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Variant      string `json:"variant"`
}

type document struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     string          `json:"mediaType"`
	Config        *descriptor     `json:"config"`
	Layers        few[descriptor] `json:"layers"`
	Manifests     few[descriptor] `json:"manifests"`
}

// few is a list of JSON that is refused beyond maxListed elements: an element of three
// bytes takes a hundred once it is read.
type few[T any] []T

func (f *few[T]) UnmarshalJSON(raw []byte) error {
	*f = nil
	if string(raw) == "null" {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return fmt.Errorf("%.20s... is no list", raw)
	}
	for d.More() {
		if len(*f) == maxListed {
			return fmt.Errorf("a list has more than %d elements", maxListed)
		}
		var one T
		if err := d.Decode(&one); err != nil {
			return err
		}
		*f = append(*f, one)
	}
	return nil
}

// layerTypes are the kinds of layers that can be unpacked.
var layerTypes = map[string]bool{
	"application/vnd.oci.image.layer.v1.tar":            true,
	"application/vnd.oci.image.layer.v1.tar+gzip":       true,
	"application/vnd.oci.image.layer.v1.tar+zstd":       true,
	"application/vnd.docker.image.rootfs.diff.tar":      true,
	"application/vnd.docker.image.rootfs.diff.tar.gzip": true,
	"application/vnd.docker.image.rootfs.diff.tar.zstd": true,
}

// foreignTypes are the kinds of layers that a registry does not have.
var foreignTypes = map[string]bool{
	"application/vnd.oci.image.layer.nondistributable.v1.tar":      true,
	"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip": true,
	"application/vnd.oci.image.layer.nondistributable.v1.tar+zstd": true,
	"application/vnd.docker.image.rootfs.foreign.diff.tar":         true,
	"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip":    true,
}

// manifestTypes are what a registry is asked for.
var manifestTypes = []string{
	"application/vnd.oci.image.manifest.v1+json",
	"application/vnd.oci.image.index.v1+json",
	"application/vnd.docker.distribution.manifest.v2+json",
	"application/vnd.docker.distribution.manifest.list.v2+json",
}

// readManifest reads a manifest, or an index: then it returns the manifest in it
// that is for this kind of machine.
func readManifest(text []byte, arch string) (m *manifest, next blob, err error) {
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, blob{}, fmt.Errorf("its manifest cannot be read: %w", err)
	}
	switch {
	case d.Config == nil && len(d.Manifests) == 0 && len(d.Layers) == 0:
		return nil, blob{}, errors.New("its manifest names neither layers nor other manifests")
	case len(d.Manifests) > 0 && (d.Config != nil || len(d.Layers) > 0):
		return nil, blob{}, errors.New("its manifest is both an image and an index")
	case len(d.Manifests) > 0:
		next, err = choose(d.Manifests, arch)
		return nil, next, err
	case d.Config == nil:
		return nil, blob{}, errors.New("its manifest names no configuration; images of the first schema are not read")
	case len(d.Layers) == 0:
		return nil, blob{}, errors.New("the image has no layers")
	case len(d.Layers) > maxLayers:
		return nil, blob{}, fmt.Errorf("the image has %d layers; at most %d", len(d.Layers), maxLayers)
	}
	m = &manifest{}
	if m.config, err = d.Config.blob("configuration"); err != nil {
		return nil, blob{}, err
	}
	if m.config.Bytes > maxManifestBytes {
		return nil, blob{}, fmt.Errorf("the configuration of the image has %d bytes; at most %d", m.config.Bytes, maxManifestBytes)
	}
	for i, l := range d.Layers {
		if foreignTypes[l.MediaType] {
			return nil, blob{}, fmt.Errorf("layer %d is a foreign one (%.100s), which is to be brought from elsewhere; push the image with its foreign layers", i, l.MediaType)
		}
		if !layerTypes[l.MediaType] {
			return nil, blob{}, fmt.Errorf("layer %d is of the kind %.100q, which cannot be unpacked", i, l.MediaType)
		}
		b, err := l.blob(fmt.Sprintf("layer %d", i))
		if err != nil {
			return nil, blob{}, err
		}
		m.layers = append(m.layers, b)
	}
	return m, blob{}, nil
}

// generalVariants run on every processor of their architecture that is in use.
var generalVariants = map[string]bool{"": true, "v1": true, "v8": true}

// small is blob for a manifest.
func (d *descriptor) small(what string) (blob, error) {
	b, err := d.blob(what)
	if err == nil && b.Bytes > maxManifestBytes {
		err = fmt.Errorf("%s: it has %d bytes; at most %d", what, b.Bytes, maxManifestBytes)
	}
	return b, err
}

func (d *descriptor) blob(what string) (blob, error) {
	digest, err := ParseDigest(d.Digest)
	switch {
	case err != nil:
		return blob{}, fmt.Errorf("%s: %w", what, err)
	case d.Size <= 0:
		return blob{}, fmt.Errorf("%s: its size is %d", what, d.Size)
	case len(d.URLs) > 0:
		return blob{}, fmt.Errorf("%s: it is to be brought from elsewhere (%.100s), which is not done", what, d.URLs[0])
	}
	return blob{digest, d.Size}, nil
}

// choose takes the manifest for linux and arch: of several variants the general one, else
// the first. An index that says of none for what it is has one manifest, or is refused.
func choose(list []descriptor, arch string) (blob, error) {
	if len(list) > maxPlatforms {
		return blob{}, fmt.Errorf("its index has %d manifests; at most %d", len(list), maxPlatforms)
	}
	var have []string
	var found, unnamed []descriptor
	for _, d := range list {
		if d.Platform == nil {
			unnamed = append(unnamed, d)
			continue
		}
		if d.Platform.OS == "linux" && d.Platform.Architecture == arch {
			found = append(found, d)
			continue
		}
		if d.Platform.OS != "unknown" && len(have) < 10 {
			have = append(have, fmt.Sprintf("%.20s/%.20s", d.Platform.OS, d.Platform.Architecture))
		}
	}
	switch {
	case len(found) > 0:
		at := slices.IndexFunc(found, func(d descriptor) bool { return generalVariants[d.Platform.Variant] })
		return found[max(at, 0)].small("manifest for linux/" + arch)
	case len(unnamed) == 1:
		return unnamed[0].small("manifest")
	case len(unnamed) > 1:
		return blob{}, fmt.Errorf("its index has %d manifests of which it does not say for what machine they are; name one of them by its digest", len(unnamed))
	}
	return blob{}, fmt.Errorf("it is not for linux/%s, only for %s; give the constraint arch=... to the job", arch, strings.Join(have, ", "))
}

// checkPlatform refuses an image that is for another kind of machine. One that
// does not say is taken.
func checkPlatform(config []byte, arch string) error {
	var p platform
	if err := json.Unmarshal(config, &p); err != nil {
		return fmt.Errorf("its configuration is not JSON: %w", err)
	}
	if (p.OS != "" && p.OS != "linux") || (p.Architecture != "" && p.Architecture != arch) {
		return fmt.Errorf("it is for %.20s/%.20s, and this machine is linux/%s; give the constraint arch=%.20s to the job", p.OS, p.Architecture, arch, p.Architecture)
	}
	return nil
}

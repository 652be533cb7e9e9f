// Package packages keeps the packages of a machine: file trees that tasks name
// by the digest of an OCI image. It brings them from registries, OCI layouts
// and archives, checks every byte against its digest, unpacks each layer once,
// and throws away what nobody has used for long when room is wanted.
//
// # The directory
//
//	blobs/sha256/<hex>   manifests, configurations and layers as they came; whole
//	                     and true to their names, from the moment they are there
//	partial/<hex>        a blob that is on its way; gone on with after a crash
//	unpacking/<name>     a layer that is being unpacked; thrown away at the start
//	layers/<hex>/tree    a layer's files, in the form that overlayfs wants
//	layers/<hex>/about   what it takes; JSON
//	images/<hex>         an image of which every layer is there; JSON. When it was
//	                     last wanted is the time of the file
//	refs/<holder>        the digests that a copy of a task needs; JSON
//
// # What holds
//
//   - What is in blobs, layers and images was synced before it got its name
//     there: a crash leaves it whole or absent.
//   - Nothing that a holder needs is thrown away. A reference is on disk before
//     what it keeps is looked for, and goes when its copy has.
//   - What an image says is never believed: sizes, names, links and kinds of
//     entries are checked, and what is refused is refused with the reason.
//
// The lock order is that of an image, that of a layer, Store.mu.
package packages

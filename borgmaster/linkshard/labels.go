package linkshard

import (
	"hash/fnv"
	"maps"
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgrpc"
)

// label has a copy told of the labels and annotations of its job, which is nil when the job
// was replaced, unless its borglet holds those of this mark.
func label(d *borgrpc.Desired, j *cell.Job, held uint64) {
	if j == nil {
		return
	}
	if d.LabelMark = labelMark(j.Labels(), j.Annotations()); d.LabelMark != held {
		d.Labels = &borgrpc.TaskLabels{Labels: j.Labels(), Annotations: j.Annotations()}
	}
}

// labelMark tells labels from others; zero when there are none. Two of one mark are taken
// for the same.
func labelMark(labels, annotations map[string]string) uint64 {
	if len(labels)+len(annotations) == 0 {
		return 0
	}
	h := fnv.New64a()
	for _, m := range []map[string]string{labels, annotations} {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			// No key and no value holds a zero byte that would matter: a mark is no proof.
			_, _ = h.Write([]byte(k + "\x00" + m[k] + "\x00"))
		}
		_, _ = h.Write([]byte{1})
	}
	return max(h.Sum64(), 1)
}

package scheduler

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Workload is a share of the jobs, for one of several schedulers that work at
// once, each on its own copy (design: the cell refuses what conflicts). Alloc
// sets are services. The zero value is everything.
type Workload struct {
	// Kind is the kind of the jobs; unspecified: any.
	Kind borgpb.JobKind
	// Of Parts shares, drawn by name, this is number Part, from 1; zero: all of
	// them are one's own.
	Part, Parts uint32
}

// maxParts bounds how many schedulers share one kind of jobs.
const maxParts = 64

// WorkloadWords says what ParseWorkload reads, for people.
const WorkloadWords = `service, batch, "hash I/N", "service I/N" or "batch I/N"`

// ParseWorkload reads "service", "batch", "hash 2/3", "batch 2/3"; empty is
// everything.
func ParseWorkload(text string) (Workload, error) {
	var w Workload
	bad := fmt.Errorf("workload %q: want %s, with I from 1 to N and N at most %d", text, WorkloadWords, maxParts)
	words := strings.Fields(text)
	if len(words) == 0 {
		return w, nil
	}
	switch words[0] {
	case "service":
		w.Kind = borgpb.JobKind_JOB_KIND_SERVICE
	case "batch":
		w.Kind = borgpb.JobKind_JOB_KIND_BATCH
	case "hash":
		if len(words) == 1 {
			return w, bad
		}
	default:
		return w, bad
	}
	if len(words) == 1 {
		return w, nil
	}
	part, parts, _ := strings.Cut(words[1], "/")
	i, err1 := strconv.ParseUint(part, 10, 32)
	n, err2 := strconv.ParseUint(parts, 10, 32)
	w.Part, w.Parts = uint32(i), uint32(n)
	if len(words) > 2 || err1 != nil || err2 != nil || i == 0 || w.validate() != nil {
		return Workload{}, bad
	}
	return w, nil
}

func (w Workload) validate() error {
	if w == (Workload{}) || w.Parts == 0 && w.Part == 0 || w.Part >= 1 && w.Part <= w.Parts && w.Parts <= maxParts {
		return nil
	}
	return fmt.Errorf("scheduler configuration: the workload is part %d of %d; want a part from 1 to their number, which is at most %d", w.Part, w.Parts, maxParts)
}

// String is what ParseWorkload reads.
func (w Workload) String() string {
	text := "hash"
	switch w.Kind {
	case borgpb.JobKind_JOB_KIND_SERVICE:
		text = "service"
	case borgpb.JobKind_JOB_KIND_BATCH:
		text = "batch"
	default:
		if w.Parts == 0 {
			return ""
		}
	}
	if w.Parts > 0 {
		text += fmt.Sprintf(" %d/%d", w.Part, w.Parts)
	}
	return text
}

func (w Workload) hash() uint64 { return hashString(w.String()) }

// includes tells whether a job or alloc set of that name and kind is in it.
func (w Workload) includes(key cell.JobKey, kind borgpb.JobKind) bool {
	const batch = borgpb.JobKind_JOB_KIND_BATCH
	if w.Kind != borgpb.JobKind_JOB_KIND_UNSPECIFIED && (w.Kind == batch) != (kind == batch) {
		return false
	}
	return w.Parts == 0 || mix(hashString(key.User)^mix(hashString(key.Name)))%uint64(w.Parts) == uint64(w.Part-1)
}

// stripe is the part of n machines at which the walks begin: services and batch
// have a half each, and their parts share it.
func (w Workload) stripe(n uint64) (low, width uint64) {
	width = n
	switch w.Kind {
	case borgpb.JobKind_JOB_KIND_SERVICE:
		width = n / 2
	case borgpb.JobKind_JOB_KIND_BATCH:
		low, width = n/2, n-n/2
	}
	if w.Parts > 0 {
		low += width * uint64(w.Part-1) / uint64(w.Parts)
		width /= uint64(w.Parts)
	}
	return low, max(width, 1)
}

// CheckWorkloads wants every job to be in exactly one of several workloads.
func CheckWorkloads(all []Workload) error {
	return errors.Join(
		checkParts(all, borgpb.JobKind_JOB_KIND_SERVICE, "service"),
		checkParts(all, borgpb.JobKind_JOB_KIND_BATCH, "batch"),
	)
}

// checkParts wants the jobs of one kind to be divided without rest. The parts of
// hash are of both kinds.
func checkParts(all []Workload, kind borgpb.JobKind, name string) error {
	var parts uint32
	seen := make(map[uint32]bool)
	for _, w := range all {
		if w.Kind != kind && w.Kind != borgpb.JobKind_JOB_KIND_UNSPECIFIED {
			continue
		}
		if part := max(w.Part, 1); len(seen) > 0 && parts != max(w.Parts, 1) || seen[part] {
			return fmt.Errorf("workloads: %s jobs are in %q and in another one; give each to one scheduler", name, w)
		}
		parts = max(w.Parts, 1)
		seen[max(w.Part, 1)] = true
	}
	if len(seen) == 0 || uint32(len(seen)) != parts {
		return fmt.Errorf("workloads: %d of %d parts of the %s jobs have a scheduler; name the rest", len(seen), max(parts, 1), name)
	}
	return nil
}

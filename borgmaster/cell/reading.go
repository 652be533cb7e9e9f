package cell

import "borg/proto/borgpb"

// reading is what the bytes of a spec say. It depends on nothing else, but on whether
// exclusive cores have an effect, and never changes, so jobs whose specs have the same
// bytes share one.
type reading struct {
	// As committed, decoded, and what both take in memory.
	Bytes  []byte
	Proto  *borgpb.JobSpec
	weight int64

	allocSet JobKey
	// Nil: none.
	limits *Limits
	// Disjoint, ascending, without gaps: what each index needs.
	needs []*Need
	// cores: some tasks have cores of their own.
	cores bool
	// volumes: some tasks have volumes, of their own or of their alloc.
	volumes bool
	// Names of the secrets that some task has, ascending.
	secrets []string
}

// Bounds of what is remembered of specs that were read, each and together, in memory.
// Larger specs are rare, and cost little beside what they ask for. A spec that was refused
// may be among them: it is charged to nobody.
const (
	maxReadings      = 1_024
	maxReadingBytes  = 64 << 10
	maxReadingsBytes = 16 << 20
)

// readings are the last specs that were read and found well formed. Many jobs are the
// one before with another name: a pipeline's, the runs of a cron job. What is remembered
// changes no answer.
type readings struct {
	// What is known depends on the format.
	format  uint32
	byBytes map[string]*reading
	// What they take.
	bytes int64
}

// of is what the bytes say, if it is remembered; nil: they have to be read.
func (s *readings) of(data []byte, format uint32) *reading {
	if s.format != format {
		return nil
	}
	return s.byBytes[string(data)]
}

// keep remembers a reading. When there are too many all are forgotten: those that still
// come are soon back.
func (s *readings) keep(r *reading, format uint32) {
	// The bytes are the key as well.
	n := r.bytesOf() + int64(len(r.Bytes))
	if n > maxReadingBytes {
		return
	}
	if s.format != format || len(s.byBytes) >= maxReadings || s.bytes+n > maxReadingsBytes {
		*s = readings{format: format, byBytes: make(map[string]*reading)}
	}
	s.byBytes[string(r.Bytes)] = r
	s.bytes += n
}

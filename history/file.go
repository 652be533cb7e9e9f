package history

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"borg/proto/borgpb"
)

// FileKind is what was asked about a file.
type FileKind uint8

const (
	WriteFile FileKind = iota + 1
	DeleteFile
	ReadFile
)

func (k FileKind) String() string { return [...]string{"?", "write", "delete", "read"}[k] }

// FileRecord is one thing that a client asked about a small file, with what it was
// told. Of the answers NotFound, Conflict and Refused are those of a Record.
type FileRecord struct {
	Client int
	// "<user>/<name>".
	Key              string
	Kind             FileKind
	CallNs, ReturnNs int64
	// Hash of what was written, or of what was shown.
	Content uint64
	// Write, delete: the version that the file must have, 0 if there must be none; if
	// HasIf.
	IfVersion uint64
	HasIf     bool

	Answer Answer
	// Write: told; read: shown. With OK.
	Version uint64
	// Late: as in Record.
	Late bool
}

// AskedFile makes the record of a mutation that is about to be sent; ok is false
// when it is not about a file.
func AskedFile(client int, callNs int64, op *borgpb.Op) (r FileRecord, ok bool) {
	r = FileRecord{Client: client, CallNs: callNs}
	var ifVersion *uint64
	switch o := op.Op.(type) {
	case *borgpb.Op_WriteFile:
		r.Kind, r.Key, ifVersion = WriteFile, o.WriteFile.User+"/"+o.WriteFile.Name, o.WriteFile.IfVersion
		r.Content = hashOf(o.WriteFile.Content)
	case *borgpb.Op_DeleteFile:
		r.Kind, r.Key, ifVersion = DeleteFile, o.DeleteFile.User+"/"+o.DeleteFile.Name, o.DeleteFile.IfVersion
	default:
		return FileRecord{}, false
	}
	if ifVersion != nil {
		r.IfVersion, r.HasIf = *ifVersion, true
	}
	return r, true
}

// Answered notes what the cell answered to a mutation.
func (r *FileRecord) Answered(returnNs int64, res *borgpb.Result) {
	r.ReturnNs = returnNs
	switch res.GetRefusal().GetKind() {
	case borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED:
		r.Answer, r.Version = OK, res.GetVersion()
	case borgpb.RefusalKind_REFUSAL_KIND_CONFLICT:
		r.Answer = Conflict
	case borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND:
		r.Answer = NotFound
	default:
		r.Answer = Refused
	}
}

// ShowedFile makes the record of a read; version 0: there was no such file.
func ShowedFile(client int, key string, callNs, returnNs int64, version uint64, content []byte) FileRecord {
	r := FileRecord{Client: client, Key: key, Kind: ReadFile, CallNs: callNs, ReturnNs: returnNs, Answer: NotFound}
	if version != 0 {
		r.Answer, r.Version, r.Content = OK, version, hashOf(content)
	}
	return r
}

func hashOf(content []byte) uint64 {
	h := fnv.New64a()
	h.Write(content)
	return h.Sum64()
}

// file is how a file may stand.
type file struct {
	there   bool
	content uint64
	// Zero while nobody was told: who wrote it heard nothing, and nobody has read it.
	version uint64
	// The latest that anybody was told. Versions only grow, also over a deletion.
	last uint64
}

// fileModel is what a cell may answer about one file.
var fileModel = porcupine.Model{
	Init: func() any { return file{} },
	Step: func(state, input, _ any) (bool, any) {
		next, ok := state.(file).answer(input.(FileRecord))
		return ok, next
	},
}

// meets tells whether the file has the version that is asked for. Whoever names
// one has been told it, so that it is none that nobody was told.
func (f file) meets(r FileRecord) bool {
	switch {
	case !r.HasIf:
		return true
	case !f.there:
		return r.IfVersion == 0
	}
	return r.IfVersion != 0 && f.version == r.IfVersion
}

// answer is how the file stands after r; ok is false when the cell cannot have
// said that.
func (f file) answer(r FileRecord) (next file, ok bool) {
	switch r.Answer {
	case Refused:
		return f, true
	case Conflict:
		return f, r.Kind != ReadFile && !f.meets(r)
	case NotFound:
		return f, !f.there && r.Kind != WriteFile
	case Unknown:
		if !f.meets(r) || r.Kind == DeleteFile && !f.there {
			return f, true
		}
	default:
		if r.Kind != WriteFile && !f.there || !f.meets(r) {
			return f, false
		}
	}
	switch r.Kind {
	case DeleteFile:
		// Told is the number that the deletion took.
		return file{last: max(f.last, r.Version)}, r.Version == 0 || r.Version > f.last
	case WriteFile:
		if r.Answer == Unknown {
			return file{there: true, content: r.Content, last: f.last}, true
		}
		return file{true, r.Content, r.Version, r.Version}, r.Version > f.last
	}
	if f.version == 0 {
		// Now somebody is told.
		return file{true, f.content, r.Version, r.Version}, r.Version > f.last && r.Content == f.content
	}
	return f, r.Version == f.version && r.Content == f.content
}

// CheckFiles looks for an order of the records of each file, as Check does for jobs.
func CheckFiles(records []FileRecord, limit time.Duration) Verdict {
	byKey := map[string][]porcupine.Operation{}
	v := Verdict{Ops: len(records)}
	for _, r := range records {
		op := porcupine.Operation{ClientId: r.Client, Input: r, Call: r.CallNs, Return: r.ReturnNs}
		if r.Answer == Unknown {
			op.Return = math.MaxInt64
		}
		byKey[r.Key] = append(byKey[r.Key], op)
		if r.Late && r.Answer != OK && r.Answer != Unknown {
			r.Answer = Unknown
			byKey[r.Key] = append(byKey[r.Key], porcupine.Operation{ClientId: r.Client, Input: r, Call: r.CallNs, Return: math.MaxInt64})
		}
	}
	v.Keys = len(byKey)
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		switch porcupine.CheckOperationsTimeout(fileModel, byKey[key], limit) {
		case porcupine.Illegal:
			if v.Illegal++; v.Illegal == 1 {
				v.Detail = explainFile(key, byKey[key], limit)
			}
		case porcupine.Unknown:
			if v.Unknown++; v.Unknown == 1 && v.Illegal == 0 {
				v.Detail = fmt.Sprintf("file %s: no verdict on %d records in %v\n", key, len(byKey[key]), limit)
			}
		}
	}
	return v
}

// explainFile lists what the longest order that was found leaves out.
func explainFile(key string, ops []porcupine.Operation, limit time.Duration) string {
	_, info := porcupine.CheckOperationsVerbose(fileModel, ops, limit)
	var longest []porcupine.Operation
	for _, partial := range info.PartialLinearizationsOperations()[0] {
		if len(partial) > len(longest) || len(partial) == len(longest) && slices.CompareFunc(partial, longest, byCall) < 0 {
			longest = partial
		}
	}
	state, placed := fileModel.Init(), map[FileRecord]int{}
	for _, op := range longest {
		_, state = fileModel.Step(state, op.Input, nil)
		placed[op.Input.(FileRecord)]++
	}
	var b strings.Builder
	fmt.Fprintf(&b, "file %s: no order explains what clients were told. The best one has %d of %d records, after which it is %+v; left out are\n", key, len(longest), len(ops), state)
	shown := 0
	for _, op := range ops {
		if r := op.Input.(FileRecord); placed[r] > 0 {
			placed[r]--
		} else if shown++; shown <= mostShown {
			fmt.Fprintf(&b, "  %v\n", r)
		}
	}
	return b.String()
}

func (r FileRecord) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d..%d client %d: %v %x", r.CallNs, r.ReturnNs, r.Client, r.Kind, r.Content)
	if r.HasIf {
		fmt.Fprintf(&b, " if version %d", r.IfVersion)
	}
	fmt.Fprintf(&b, " -> %v version %d", r.Answer, r.Version)
	return b.String()
}

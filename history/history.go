// Package history says whether what clients were told can have come from one
// cell that does one thing at a time: whether a history is linearizable, job by
// job.
//
// A Record is what one client asked and what it heard. model.go is what
// the cell may answer, as borgmaster/cell decides it; it is written anew on
// purpose and shares no code with the cell, so that a mistake is made twice or
// is found. The search for an order is porcupine's.
//
// It knows only what clients saw: no index of the log, no state of a replica.
// A history must be shorter than the day for which the cell remembers dead
// jobs, and its jobs must not be made by another way than the records.
package history

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// Kind is what was asked.
type Kind uint8

const (
	Submit Kind = iota + 1
	Kill
	Update
	Resize
	Read
)

func (k Kind) String() string {
	return [...]string{"?", "submit", "kill", "update", "resize", "read"}[k]
}

// Answer is what the client heard.
type Answer uint8

const (
	// Unknown: no answer came. It may be done at any time after it was asked, or
	// never.
	Unknown Answer = iota
	// OK: done; of a read: there is a job.
	OK
	// NotFound: there is no such job.
	NotFound
	// AlreadyExists: a job that is not dead has the name.
	AlreadyExists
	// Dead: the job is dead.
	Dead
	// Conflict: the job has another version than was expected.
	Conflict
	// Refused for a reason that lies outside of the model: a limit, a spec that is
	// not valid, who asked. It is taken as possible always, and changes nothing.
	Refused
)

func (a Answer) String() string {
	return [...]string{"unknown", "ok", "not-found", "already-exists", "dead", "conflict", "refused"}[a]
}

// Record is one thing that a client asked, with what it was told.
type Record struct {
	Client int
	// "<user>/<name>".
	Key  string
	Kind Kind
	// When it was first asked, and when the answer came. ReturnNs of an Unknown
	// is not looked at.
	CallNs, ReturnNs int64

	// Submit, update: number of tasks in the spec. Resize: as asked. Read: shown.
	Tasks uint32
	// Submit, update: hash of the spec's bytes.
	Spec uint64
	// Submit, update: the job may end by itself.
	MayEnd bool
	// Kill, update, resize; zero: any.
	ExpectVersion uint64

	Answer Answer
	// Of the job, afterwards; with OK.
	UID     string
	Version uint64
	// Read: the job is dead.
	IsDead bool

	// Late: it was refused, but a try of it was still under way and may be done
	// after that. Clients that repeat a request set it.
	Late bool
}

// Asked makes the record of a mutation that is about to be sent; ok is false
// when it is not about a job.
func Asked(client int, callNs int64, op *borgpb.Op) (r Record, ok bool) {
	r = Record{Client: client, CallNs: callNs}
	switch o := op.Op.(type) {
	case *borgpb.Op_SubmitJob:
		r.Kind, r.Key = Submit, o.SubmitJob.User+"/"+o.SubmitJob.Name
		r.takeSpec(o.SubmitJob.Spec)
	case *borgpb.Op_KillJob:
		r.Kind, r.Key, r.ExpectVersion = Kill, o.KillJob.User+"/"+o.KillJob.Name, o.KillJob.ExpectVersion
	case *borgpb.Op_UpdateJob:
		r.Kind, r.Key, r.ExpectVersion = Update, o.UpdateJob.User+"/"+o.UpdateJob.Name, o.UpdateJob.ExpectVersion
		r.takeSpec(o.UpdateJob.Spec)
	case *borgpb.Op_ResizeJob:
		r.Kind, r.Key, r.ExpectVersion = Resize, o.ResizeJob.User+"/"+o.ResizeJob.Name, o.ResizeJob.ExpectVersion
		r.Tasks = o.ResizeJob.Tasks
	default:
		return Record{}, false
	}
	return r, true
}

// takeSpec keeps what the model needs of a spec. One that cannot be read is
// refused by the cell.
func (r *Record) takeSpec(data []byte) {
	h := fnv.New64a()
	h.Write(data)
	spec := new(borgpb.JobSpec)
	_ = proto.Unmarshal(data, spec)
	r.Spec, r.Tasks = h.Sum64(), spec.Tasks
	r.MayEnd = spec.Kind != borgpb.JobKind_JOB_KIND_SERVICE || spec.OnLost == borgpb.OnLost_ON_LOST_DEAD || spec.Parent != ""
}

// Answered notes what the cell answered to a mutation.
func (r *Record) Answered(returnNs int64, res *borgpb.Result) {
	r.ReturnNs = returnNs
	refusal := res.GetRefusal()
	// What a spec names and is not there is about another job.
	elsewhere := strings.HasPrefix(refusal.GetField(), "spec.")
	switch kind := refusal.GetKind(); {
	case refusal == nil:
		r.Answer, r.UID, r.Version = OK, res.GetUid(), res.GetVersion()
	case kind == borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS:
		r.Answer = AlreadyExists
	case kind == borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND && !elsewhere:
		r.Answer = NotFound
	case kind == borgpb.RefusalKind_REFUSAL_KIND_STATE && !elsewhere:
		r.Answer = Dead
	case kind == borgpb.RefusalKind_REFUSAL_KIND_CONFLICT:
		r.Answer = Conflict
	default:
		r.Answer = Refused
	}
}

// Showed makes the record of a read that showed job; nil: there was none.
func Showed(client int, key string, callNs, returnNs int64, job *borgpb.Job) Record {
	r := Record{Client: client, Key: key, Kind: Read, CallNs: callNs, ReturnNs: returnNs, Answer: NotFound}
	if job != nil {
		r.Answer, r.UID, r.Version = OK, job.GetMeta().GetUid(), job.GetMeta().GetVersion()
		r.Tasks, r.IsDead = job.GetSpec().GetTasks(), job.GetStatus().GetState() == borgpb.State_STATE_DEAD
	}
	return r
}

// Verdict is what came of a check.
type Verdict struct {
	Keys, Ops int
	// Keys whose records no order explains, and keys for which time ran out.
	Illegal, Unknown int
	// The first key of either kind, and what does not fit; empty: all is well.
	Detail string
}

// Check looks for an order of the records of each key, for at most limit per
// key; zero: as long as it takes. Reads that were never answered say nothing
// and are left out.
func Check(records []Record, limit time.Duration) Verdict {
	byKey := map[string][]porcupine.Operation{}
	var v Verdict
	for _, r := range records {
		if r.Kind == Read && r.Answer == Unknown {
			continue
		}
		v.Ops++
		byKey[r.Key] = append(byKey[r.Key], operations(r)...)
	}
	v.Keys = len(byKey)
	var worst string
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		switch porcupine.CheckOperationsTimeout(model, byKey[key], limit) {
		case porcupine.Illegal:
			if v.Illegal++; v.Illegal == 1 {
				worst = explain(key, byKey[key], limit)
			}
		case porcupine.Unknown:
			if v.Unknown++; v.Unknown == 1 {
				v.Detail = fmt.Sprintf("%s: no verdict on %d records in %v\n", key, len(byKey[key]), limit)
			}
		}
	}
	if v.Illegal > 0 {
		v.Detail = worst
	}
	return v
}

// operations is a record as porcupine takes it: two operations if what was
// refused may yet be done.
func operations(r Record) []porcupine.Operation {
	op := porcupine.Operation{ClientId: r.Client, Input: r, Call: r.CallNs, Return: r.ReturnNs}
	switch {
	case r.Answer == Unknown:
		op.Return = math.MaxInt64
	case r.Late && r.Answer != OK:
		later := r
		later.Answer = Unknown
		return []porcupine.Operation{op, {ClientId: r.Client, Input: later, Call: r.CallNs, Return: math.MaxInt64}}
	}
	return []porcupine.Operation{op}
}

// mostShown bounds the records that an explanation quotes.
const mostShown = 12

// explain says how far an order was found, and what did not fit after it.
func explain(key string, ops []porcupine.Operation, limit time.Duration) string {
	_, info := porcupine.CheckOperationsVerbose(model, ops, limit)
	var longest []porcupine.Operation
	for _, partial := range info.PartialLinearizationsOperations()[0] {
		// Of several alike always the same, so that a run repeats to the letter.
		if len(partial) > len(longest) || len(partial) == len(longest) && slices.CompareFunc(partial, longest, byCall) < 0 {
			longest = partial
		}
	}
	state := model.Init()
	placed := map[Record]int{}
	for _, op := range longest {
		_, state = model.Step(state, op.Input, nil)
		placed[op.Input.(Record)]++
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: no order explains what clients were told. The best one has %d of %d records; it ends with\n", key, len(longest), len(ops))
	for _, op := range longest[max(0, len(longest)-3):] {
		fmt.Fprintf(&b, "  %v\n", op.Input.(Record))
	}
	fmt.Fprintf(&b, "after which there is %v, and none of these can come next:\n", state)
	var left []Record
	for _, op := range ops {
		if r := op.Input.(Record); placed[r] > 0 {
			placed[r]--
		} else if r.Answer != Unknown {
			left = append(left, r)
		}
	}
	// Whatever was asked after one of them was answered comes after it.
	answeredNs := slices.MinFunc(left, func(a, b Record) int { return cmp.Compare(a.ReturnNs, b.ReturnNs) }).ReturnNs
	left = slices.DeleteFunc(left, func(r Record) bool { return r.CallNs > answeredNs })
	for i, r := range left {
		if i == mostShown {
			fmt.Fprintf(&b, "  (%d more)\n", len(left)-i)
			break
		}
		fmt.Fprintf(&b, "  %v\n", r)
	}
	return b.String()
}

func byCall(a, b porcupine.Operation) int {
	return cmp.Or(cmp.Compare(a.Call, b.Call), cmp.Compare(a.ClientId, b.ClientId))
}

func (r Record) String() string {
	var b strings.Builder
	until := fmt.Sprint(r.ReturnNs)
	if r.Answer == Unknown {
		until = "?"
	}
	fmt.Fprintf(&b, "%d..%s client %d: %v", r.CallNs, until, r.Client, r.Kind)
	switch r.Kind {
	case Submit, Update:
		fmt.Fprintf(&b, " tasks %d spec %x", r.Tasks, r.Spec)
	case Resize:
		fmt.Fprintf(&b, " tasks %d", r.Tasks)
	}
	if r.ExpectVersion != 0 {
		fmt.Fprintf(&b, " expecting version %d", r.ExpectVersion)
	}
	fmt.Fprintf(&b, " -> %v", r.Answer)
	if r.Answer == OK {
		fmt.Fprintf(&b, " uid %s version %d", r.UID, r.Version)
		if r.Kind == Read {
			fmt.Fprintf(&b, " tasks %d", r.Tasks)
			if r.IsDead {
				b.WriteString(" dead")
			}
		}
	}
	return b.String()
}

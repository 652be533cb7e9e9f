package cell

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"borg/proto/borgpb"
)

// TestTranscripts runs the scenarios in testdata. After each command the cell
// is checked, and written down and read again. Rewrite with
// go test ./borgmaster/cell -run TestTranscripts -rewrite, and read the diff.
func TestTranscripts(t *testing.T) { transcripts(t, reload) }

// TestTranscriptsKept plays them with a cell that is never written down and read again:
// what it remembers beside its records must make no difference.
func TestTranscriptsKept(t *testing.T) {
	transcripts(t, func(_ testing.TB, c *Cell) *Cell { return c })
}

func transcripts(t *testing.T, next func(testing.TB, *Cell) *Cell) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		s := &script{testLog: newTestLog(t)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.testLog.t = t
			out := s.run(d)
			if err := s.c.Check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			s.c = next(t, s.c)
			return out
		})
	})
}

// script runs the commands of one transcript.
type script struct {
	*testLog
	d *datadriven.TestData
}

// arg returns the first value of an argument, or otherwise.
func (s *script) arg(key, otherwise string) string {
	for _, a := range s.d.CmdArgs {
		if a.Key == key && len(a.Vals) > 0 {
			return a.Vals[0]
		}
	}
	return otherwise
}

func (s *script) list(key string) []string {
	for _, a := range s.d.CmdArgs {
		if a.Key == key {
			return a.Vals
		}
	}
	return nil
}

func (s *script) has(key string) bool {
	for _, a := range s.d.CmdArgs {
		if a.Key == key {
			return true
		}
	}
	return false
}

// num reads a number with an optional K, M, G (powers of 1024) or s (seconds).
func (s *script) num(key string, otherwise int64) int64 {
	v := s.arg(key, "")
	if v == "" {
		return otherwise
	}
	unit := int64(1)
	if i := strings.IndexByte("KMGs", v[len(v)-1]); i >= 0 {
		unit, v = []int64{1 << 10, 1 << 20, 1 << 30, second}[i], v[:len(v)-1]
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		s.d.Fatalf(s.t, "%s: %v", key, err)
	}
	return n * unit
}

// first is the argument that is a bare word: what the command is about.
func (s *script) first(n int) string { return s.d.CmdArgs[n].Key }

func (s *script) key() (user, name string) {
	user, name, _ = strings.Cut(s.first(0), "/")
	return user, name
}

func (s *script) run(d *datadriven.TestData) string {
	s.d = d
	switch d.Cmd {
	case "show":
		return s.show()
	case "fit":
		return s.fit()
	case "time":
		s.cellNs += s.num("cell", 0)
		s.wallNs += s.num("wall", s.num("cell", 0))
		s.term += uint64(s.num("term", 0))
		return ""
	}
	op := s.op()
	op.RequestId, op.RequestWallNs = s.arg("id", ""), s.wallNs-s.num("age", 0)
	if op.RequestId == "" {
		op.RequestWallNs = 0
	}
	if user := s.arg("as", ""); user != "" {
		op.Principal = &borgpb.Principal{User: user, Role: borgpb.Role_ROLE_USER}
	}
	if task := s.arg("as-task", ""); task != "" {
		user, _, _ := strings.Cut(task, "/")
		op.Principal = &borgpb.Principal{User: user, Role: borgpb.Role_ROLE_TASK, Task: task}
	}
	results, events := s.apply(op)
	return s.tell(results[0], events)
}

// tell writes down what an op did.
func (s *script) tell(r *borgpb.Result, events []Event) string {
	var b strings.Builder
	refusal := func(prefix string, f *borgpb.Refusal) {
		fmt.Fprintf(&b, "%srefused %s %s", prefix, strings.TrimPrefix(f.Kind.String(), "REFUSAL_KIND_"), f.Object)
		if f.Field != "" {
			fmt.Fprintf(&b, " [%s]", f.Field)
		}
		fmt.Fprintf(&b, ": %s\n", f.Message)
	}
	if r.Refusal != nil {
		refusal("", r.Refusal)
		if r.Repeated {
			b.WriteString("  (repeated)\n")
		}
	} else {
		b.WriteString("ok")
		if r.Uid != "" {
			fmt.Fprintf(&b, " uid %s version %d", r.Uid, r.Version)
		}
		if r.UpdateUid != "" {
			fmt.Fprintf(&b, " update %s", r.UpdateUid)
		}
		if r.Repeated {
			b.WriteString(" (repeated)")
		}
		b.WriteString("\n")
	}
	for _, item := range r.Items {
		if item.Kind != 0 {
			refusal("  ", item)
		}
	}
	for _, e := range events {
		fmt.Fprintf(&b, "  %s %s", strings.TrimPrefix(e.Kind.String(), "EVENT_KIND_"), e.Object())
		if e.Attempt != 0 {
			fmt.Fprintf(&b, ".%d", e.Attempt)
		}
		if e.Machine != "" && e.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_MACHINE {
			fmt.Fprintf(&b, " on %s", e.Machine)
		}
		if e.From != 0 || e.To != 0 {
			fmt.Fprintf(&b, " %v>%v", word(e.From), word(e.To))
		}
		if e.Cause != 0 {
			fmt.Fprintf(&b, " cause %s", strings.TrimPrefix(e.Cause.String(), "STOP_CAUSE_"))
		}
		if e.Exit != nil {
			fmt.Fprintf(&b, " exit %d", e.Exit.Code)
		}
		if e.Reason != "" {
			fmt.Fprintf(&b, " (%s)", e.Reason)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func word(s borgpb.State) string { return strings.ToLower(strings.TrimPrefix(s.String(), "STATE_")) }

// op makes the op of a command.
func (s *script) op() *borgpb.Op {
	switch s.d.Cmd {
	case "machine":
		return s.machine()
	case "set":
		return s.setMachine()
	case "remove":
		return &borgpb.Op{Op: &borgpb.Op_RemoveMachine{RemoveMachine: &borgpb.RemoveMachine{Name: s.first(0), Force: s.has("force"), GiveUpVolumes: s.has("give-up")}}}
	case "up":
		return &borgpb.Op{Op: &borgpb.Op_MachineUp{MachineUp: &borgpb.MachineUp{Name: s.first(0)}}}
	case "down":
		return &borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{
			Name: s.first(0), Term: uint64(s.num("term", int64(s.term))), Reason: "no answer"}}}
	case "drain", "undrain":
		return &borgpb.Op{Reason: s.arg("reason", ""), Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{
			Name: s.first(0), Drain: s.d.Cmd == "drain", DeadlineNs: s.num("deadline", 0), Now: s.has("now"), GiveUpVolumes: s.has("give-up")}}}
	case "submit":
		user, name := s.key()
		return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: name, Labels: s.words("labels"), Spec: marshal(s.t, s.jobSpec())}}}
	case "update":
		user, name := s.key()
		return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{
			User: user, Name: name, ExpectVersion: uint64(s.num("expect", 0)), Labels: s.words("labels"), Annotations: s.words("annotations"), Spec: marshal(s.t, s.jobSpec()),
			Merge: s.d.HasArg("merge")}}}
	case "promote", "pause", "resume", "abort", "rollback", "close", "pulse":
		user, name := s.key()
		verb := borgpb.UpdateVerb_value["UPDATE_VERB_"+strings.ToUpper(s.d.Cmd)]
		return &borgpb.Op{Reason: s.arg("reason", ""), Op: &borgpb.Op_ControlUpdate{ControlUpdate: &borgpb.ControlUpdate{
			User: user, Name: name, Verb: borgpb.UpdateVerb(verb), UpdateUid: s.arg("update", "")}}}
	case "judge":
		return s.judge()
	case "kill":
		user, name := s.key()
		return &borgpb.Op{Reason: s.arg("reason", ""), Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{
			User: user, Name: name, ExpectVersion: uint64(s.num("expect", 0))}}}
	case "resize":
		user, name := s.key()
		return &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: user, Name: name, Tasks: uint32(s.num("tasks", 0))}}}
	case "allocset":
		user, name := s.key()
		return &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{
			User: user, Name: name, Labels: s.words("labels"), Spec: marshal(s.t, s.setSpec())}}}
	case "update-allocset", "resize-allocset":
		return s.changeSet()
	case "kill-allocset":
		user, name := s.key()
		return &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: user, Name: name}}}
	case "assign":
		a := &borgpb.Assign{Assignments: []*borgpb.Assignment{s.assignment()}}
		for _, name := range s.list("enable") {
			a.Enable = append(a.Enable, s.c.Job(mustKey(name)).uid.String())
		}
		return &borgpb.Op{Op: &borgpb.Op_Assign{Assign: a}}
	case "batch":
		return s.batch()
	case "move":
		return &borgpb.Op{Op: &borgpb.Op_MoveTasks{MoveTasks: s.moves()}}
	case "report":
		return s.report()
	case "heard":
		return s.heard()
	case "reserve":
		id := s.copyID(s.first(1))
		return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{
			Machine: s.first(0), Reservations: []*borgpb.TaskReservation{{
				JobUid: id.Job.String(), Index: id.Index, Attempt: id.Attempt, CpuMilli: s.num("cpu", 0), MemBytes: s.num("mem", 0),
			}},
		}}}}}
	case "settime":
		return &borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{ConfirmWall: s.has("confirm")}}}
	case "grant":
		return &borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: s.first(0), Capability: s.arg("capability", "")}}}
	case "revoke":
		o := &borgpb.Revoke{User: s.first(0), Capability: s.arg("capability", "")}
		if s.has("certificates") {
			o.CertificatesWallNs = s.wallNs + s.num("certificates", 0)
		}
		return &borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: o}}
	case "ban":
		o := &borgpb.BanPackage{Name: s.first(0), Digest: s.arg("digest", ""), Machine: s.arg("on", "")}
		if s.has("for") {
			o.ExpiresWallNs = s.wallNs + s.num("for", 0)
		}
		return &borgpb.Op{Reason: s.arg("reason", ""), Op: &borgpb.Op_BanPackage{BanPackage: o}}
	case "unban":
		o := &borgpb.UnbanPackage{Name: s.first(0), Digest: s.arg("digest", ""), Machine: s.arg("on", "")}
		return &borgpb.Op{Reason: s.arg("reason", ""), Op: &borgpb.Op_UnbanPackage{UnbanPackage: o}}
	case "invite":
		return &borgpb.Op{Op: &borgpb.Op_AddToken{AddToken: &borgpb.AddToken{
			Hash: s.hash(), Name: s.first(0), ExpiresWallNs: s.wallNs + s.num("life", 3600*second)}}}
	case "join":
		return &borgpb.Op{Op: &borgpb.Op_UseToken{UseToken: &borgpb.UseToken{Hash: s.hash(), Name: s.first(0)}}}
	case "secret":
		user, name := s.key()
		return &borgpb.Op{Op: &borgpb.Op_SetSecret{SetSecret: &borgpb.SetSecret{
			User: user, Name: name, Version: uint64(s.num("version", 1)), KeyId: s.keyID(), Sealed: s.sealed()}}}
	case "reseal":
		user, name := s.key()
		return &borgpb.Op{Op: &borgpb.Op_ResealSecret{ResealSecret: &borgpb.ResealSecret{
			User: user, Name: name, Version: uint64(s.num("version", 1)), KeyId: s.keyID(), Sealed: s.sealed()}}}
	case "delete-secret":
		user, name := s.key()
		return &borgpb.Op{Op: &borgpb.Op_DeleteSecret{DeleteSecret: &borgpb.DeleteSecret{User: user, Name: name}}}
	case "use-key":
		return &borgpb.Op{Op: &borgpb.Op_UseCellKey{UseCellKey: &borgpb.UseCellKey{KeyId: s.keyID()}}}
	case "write":
		user, name, _ := strings.Cut(s.first(0), "/")
		return &borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: user, Name: name, Content: s.content(), IfVersion: s.ifVersion()}}}
	case "delete":
		user, name, _ := strings.Cut(s.first(0), "/")
		return &borgpb.Op{Op: &borgpb.Op_DeleteFile{DeleteFile: &borgpb.DeleteFile{User: user, Name: name, IfVersion: s.ifVersion()}}}
	case "note":
		id, err := ParseTaskID(s.first(0))
		if err != nil {
			s.d.Fatalf(s.t, "%v", err)
		}
		o := &borgpb.SetTaskNote{User: id.Job.User, Job: id.Job.Name, Index: id.Index, Attempt: uint64(s.num("attempt", 1)), Text: s.arg("text", "")}
		if s.has("annotation") {
			k, v, _ := strings.Cut(s.arg("annotation", ""), ":")
			o.Annotations = map[string]string{k: v}
		}
		return &borgpb.Op{Op: &borgpb.Op_SetTaskNote{SetTaskNote: o}}
	case "quarantine", "release":
		return s.quarantine()
	case "delete-volume", "volume-gone", "volume-found":
		return s.volume()
	case "label":
		return s.label()
	case "policy":
		return &borgpb.Op{Reason: s.arg("reason", ""), Op: &borgpb.Op_SetLabelPolicy{SetLabelPolicy: &borgpb.SetLabelPolicy{Policy: s.labelPolicy(), ExpectVersion: uint64(s.num("expect", 0))}}}
	case "collapse":
		return s.collapse()
	case "visibility":
		return s.visibility()
	case "bounds":
		// What tasks of a user ask for who say nothing, or at most.
		o := &borgpb.SetTaskLimits{User: s.first(0), Default: s.resources()}
		if s.has("most") {
			o.Default, o.Max = nil, o.Default
		}
		return &borgpb.Op{Op: &borgpb.Op_SetTaskLimits{SetTaskLimits: o}}
	case "fire":
		return s.fire()
	case "suspend-cron", "resume-cron":
		user, name := s.key()
		return &borgpb.Op{Reason: s.arg("reason", ""), Op: &borgpb.Op_SuspendCron{SuspendCron: &borgpb.SuspendCron{User: user, Name: name, Suspend: s.d.Cmd == "suspend-cron"}}}
	case "raise":
		return &borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: uint32(s.num("format", 0))}}}
	}
	s.d.Fatalf(s.t, "unknown command %s", s.d.Cmd)
	return nil
}

// hash is that of the token with a number.
func (s *script) hash() []byte { return bytes.Repeat([]byte{byte(s.num("token", 1))}, 32) }

// keyID is that of the cell key with a number.
func (s *script) keyID() string { return fmt.Sprintf("%016x", s.num("key", 1)) }

func (s *script) sealed() []byte { return make([]byte, s.num("bytes", 32)) }

// content of a file: so many bytes, or a text.
func (s *script) content() []byte {
	if s.has("bytes") {
		return make([]byte, s.num("bytes", 0))
	}
	return []byte(s.arg("text", ""))
}

func (s *script) ifVersion() *uint64 {
	if !s.has("if") {
		return nil
	}
	return new(uint64(s.num("if", 0)))
}

func (s *script) resources() *borgpb.Resources {
	r := &borgpb.Resources{CpuMilli: s.num("cpu", 100), MemBytes: s.num("mem", 1<<20), DiskBytes: s.num("disk", 0)}
	if s.has("gpu") {
		r.Devices = map[string]int64{"gpu": s.num("gpu", 0)}
	}
	if s.has("gpu-milli") {
		r.DeviceMilli = map[string]int64{"gpu": s.num("gpu-milli", 0)}
	}
	return r
}

func (s *script) attributes() map[string]string {
	m := make(map[string]string)
	for _, kv := range s.list("attr") {
		k, v, _ := strings.Cut(kv, ":")
		m[k] = v
	}
	return m
}

func (s *script) machine() *borgpb.Op {
	m := &borgpb.MachineSpec{
		Addr: s.first(0) + ":7101", Capacity: s.capacity(),
		Attributes: s.attributes(), PortFirst: 20000, PortLast: uint32(s.num("last-port", 20009)),
	}
	m.Taints = s.taints()
	return &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: s.first(0), Spec: m}}}
}

// taints reads taint=(KEY[:VALUE][:evict|:prefer-not],...).
func (s *script) taints() (out []*borgpb.Taint) {
	for _, text := range s.list("taint") {
		words := strings.Split(text, ":")
		t := &borgpb.Taint{Key: words[0]}
		for _, w := range words[1:] {
			switch w {
			case "evict":
				t.Evict = true
			case "prefer-not":
				t.PreferNot = true
			default:
				t.Value = w
			}
		}
		out = append(out, t)
	}
	return out
}

func (s *script) capacity() *borgpb.Resources {
	r := s.resources()
	r.CpuMilli, r.MemBytes, r.DiskBytes = s.num("cpu", 4000), s.num("mem", 4<<30), s.num("disk", 0)
	s.offerCPUs(r)
	return r
}

func (s *script) setMachine() *borgpb.Op {
	o := &borgpb.SetMachine{
		Name: s.first(0), SetAttributes: s.attributes(), RemoveAttributes: s.list("remove"),
		SetTaints: s.taints(), RemoveTaints: s.list("untaint"),
	}
	if s.has("cpu") || s.has("disk") {
		o.Capacity = s.capacity()
	}
	return &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: o}}
}

func (s *script) updatePolicy() *borgpb.UpdatePolicy {
	p := &borgpb.UpdatePolicy{
		BatchSize: uint32(s.num("batch-size", 0)), MaxDisruptions: uint32(s.num("max-disruptions", 0)),
		WatchNs: s.num("watch", 0), ProgressDeadlineNs: s.num("deadline", 0), Canaries: uint32(s.num("canaries", 0)),
		CanaryWatchNs: s.num("canary-watch", 0), AutoRollback: s.has("auto-rollback"), CloseAfterNs: s.num("close-after", 0),
		PulseNs: s.num("pulse", 0), NoNeighbours: s.has("no-neighbours"),
	}
	if s.has("reverse") {
		p.Order = borgpb.UpdateOrder_UPDATE_ORDER_REVERSE
	}
	if s.has("max-failed") {
		p.MaxFailed = new(uint32(s.num("max-failed", 0)))
	}
	s.pace(p)
	return p
}

func (s *script) afterFailure() borgpb.AfterFailure {
	return borgpb.AfterFailure(borgpb.AfterFailure_value["AFTER_FAILURE_"+strings.ToUpper(s.arg("after-failure", ""))])
}

func (s *script) jobSpec() *borgpb.JobSpec {
	spec := &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: uint32(s.num("tasks", 1)), Priority: int32(s.num("priority", 200)),
		Task: &borgpb.TaskSpec{
			Resources: s.resources(), Args: s.list("args"), Ports: s.list("ports"), GraceNs: s.num("grace", 0), Secrets: s.list("secrets"),
			NoEstimation: s.has("no-estimation"), Network: s.network(),
		},
		SubmitChildren: s.has("submit-children"),
		MaxFailures:    uint32(s.num("max-failures", 0)), AllocSet: s.arg("alloc-set", ""), Parent: s.arg("parent", ""),
		StartAfter: s.list("after"), AfterFailure: s.afterFailure(), MaxPerMachine: uint32(s.num("max-per-machine", 0)), MaxPerRack: uint32(s.num("max-per-rack", 0)),
		MaxRunning: uint32(s.num("max-running", 0)), MaxPer: s.maxPer(),
		Update: s.updatePolicy(),
	}
	spec.Task.Volumes = s.volumes(true)
	spec.AllocByIndex = s.has("alloc-by-index")
	if s.has("batch") {
		spec.Kind = borgpb.JobKind_JOB_KIND_BATCH
	}
	if s.has("daemon") {
		spec.Kind, spec.Tasks = borgpb.JobKind_JOB_KIND_DAEMON, uint32(s.num("tasks", 0))
	}
	if s.has("cron") {
		spec.Kind = borgpb.JobKind_JOB_KIND_CRON
		spec.Cron = &borgpb.CronSpec{
			Schedule: s.arg("cron", ""), TimeZone: s.arg("zone", ""), StartingDeadlineNs: s.num("deadline", 0),
			KeepFinished: uint32(s.num("keep-finished", 0)), KeepFailed: uint32(s.num("keep-failed", 0)),
			Overlap: borgpb.CronOverlap(borgpb.CronOverlap_value["CRON_OVERLAP_"+strings.ToUpper(s.arg("overlap", ""))]),
		}
	}
	spec.Gang, spec.BatchQueue = s.has("gang"), s.has("queue")
	s.preempts(spec)
	if s.has("max-down") || s.has("max-per-task") || s.has("window") {
		spec.DisruptionBudget = &borgpb.DisruptionBudget{
			MaxDown: uint32(s.num("max-down", 0)), MaxPerTask: uint32(s.num("max-per-task", 0)), WindowNs: s.num("window", 0)}
	}
	if s.has("die-if-lost") {
		spec.OnLost = borgpb.OnLost_ON_LOST_DEAD
	}
	for _, kv := range s.list("tolerate") {
		k, forgiven, _ := strings.Cut(kv, ":")
		n, _ := strconv.Atoi(forgiven)
		spec.Task.Tolerations = append(spec.Task.Tolerations, &borgpb.Toleration{Key: k, ForgivenessNs: int64(n) * second})
	}
	for _, kv := range s.list("where") {
		k, v, _ := strings.Cut(kv, ":")
		spec.Task.Constraints = append(spec.Task.Constraints, &borgpb.Constraint{Key: k, Relation: borgpb.Relation_RELATION_EQUAL, Value: v})
	}
	for _, kv := range s.list("where-not") {
		k, v, _ := strings.Cut(kv, ":")
		spec.Task.Constraints = append(spec.Task.Constraints, &borgpb.Constraint{Key: k, Relation: borgpb.Relation_RELATION_NOT_EQUAL, Value: v})
	}
	for _, dir := range s.list("mount") {
		spec.Task.Mounts = append(spec.Task.Mounts, &borgpb.Mount{Source: dir, Path: "/data"})
	}
	if relax := s.list("relax"); len(relax) > 0 {
		spec.Task.Relax = &borgpb.Relax{SystemCalls: slices.Contains(relax, "calls"), UserIds: slices.Contains(relax, "ids")}
	}
	for _, text := range s.list("package") {
		name, digest, _ := strings.Cut(text, "@")
		spec.Task.Packages = append(spec.Task.Packages, &borgpb.Package{Name: name, Digest: digest, Path: "/opt/" + name, Credentials: s.arg("credentials", "")})
	}
	for _, text := range s.list("file") {
		name, signal, _ := strings.Cut(text, ":")
		spec.Task.Files = append(spec.Task.Files, &borgpb.PushedFile{
			Name: name, Signal: borgpb.ReloadSignal(borgpb.ReloadSignal_value["RELOAD_SIGNAL_"+strings.ToUpper(signal)])})
	}
	s.asksCores(spec.Task)
	if s.has("ready") {
		spec.Task.Ready = &borgpb.HealthCheck{HttpPath: s.arg("ready", ""), PeriodNs: s.num("ready-period", 0)}
	}
	return spec
}

// network reads own-network.
func (s *script) network() borgpb.Network {
	if s.has("own-network") {
		return borgpb.Network_NETWORK_OWN
	}
	return borgpb.Network_NETWORK_UNSPECIFIED
}

// maxPer reads max-per=(KEY:N,...).
func (s *script) maxPer() map[string]uint32 {
	var most map[string]uint32
	for _, kv := range s.list("max-per") {
		k, n, _ := strings.Cut(kv, ":")
		if most == nil {
			most = make(map[string]uint32)
		}
		v, _ := strconv.Atoi(n)
		most[k] = uint32(v)
	}
	return most
}

// fire decides the slot so many minutes after 1970, or a run by hand.
func (s *script) fire() *borgpb.Op {
	user, name := s.key()
	o := &borgpb.FireCron{
		User: user, Name: name, SlotWallNs: s.num("slot", 0) * minute, Missed: uint32(s.num("missed", 0)), Manual: s.has("manual"),
	}
	if j := s.c.Job(JobKey{user, name}); j != nil {
		o.Uid, o.Version = j.uid.String(), uint64(s.num("version", int64(j.version)))
		spec := j.RunSpec()
		spec.Priority += int32(s.num("other-priority", 0))
		o.Spec = marshal(s.t, spec)
	}
	return &borgpb.Op{Op: &borgpb.Op_FireCron{FireCron: o}}
}

// copyID reads "<user>/<name>/<index>.<attempt>".
func (s *script) copyID(name string) CopyID {
	task, attempt, _ := strings.Cut(name, ".")
	id, err := ParseTaskID(task)
	if err != nil {
		s.d.Fatalf(s.t, "%v", err)
	}
	n, _ := strconv.ParseUint(attempt, 10, 64)
	if set := s.c.AllocSet(id.Job); set != nil {
		return CopyID{set.uid, id.Index, n}
	}
	if uid := s.arg("uid", ""); uid != "" {
		u, _ := ParseUID(uid)
		return CopyID{u, id.Index, n}
	}
	j := s.c.Job(id.Job)
	if j == nil {
		s.d.Fatalf(s.t, "no job %v", id.Job)
	}
	return CopyID{j.uid, id.Index, n}
}

func (s *script) assignment() *borgpb.Assignment {
	id := s.copyID(s.first(0))
	a := &borgpb.Assignment{Uid: id.Job.String(), Index: id.Index, Machine: s.arg("on", ""), Alloc: s.arg("in", "")}
	if j := s.c.JobByUID(id.Job); j != nil && j.Task(id.Index) != nil {
		a.LastAttempt = j.Task(id.Index).attempt
	} else if set := s.c.AllocSetByUID(id.Job); set != nil {
		a.LastAttempt = set.allocs[id.Index].attempt
	}
	a.LastAttempt = uint64(s.num("last", int64(a.LastAttempt)))
	a.Version = uint64(s.num("version", 0))
	for _, p := range s.list("ports") {
		n, _ := strconv.Atoi(p)
		a.Ports = append(a.Ports, uint32(n))
	}
	if s.has("cpus") {
		a.Devices = append(a.Devices, s.cpus())
	}
	if s.has("gpu") {
		g := &borgpb.DeviceGrant{Name: "gpu"}
		for _, number := range s.list("gpu") {
			n, _ := strconv.Atoi(number)
			g.Numbers = append(g.Numbers, uint32(n))
		}
		a.Devices = append(a.Devices, g)
	}
	a.VictimsWhy = s.arg("why", "")
	for _, v := range s.list("victims") {
		id := s.copyID(v)
		a.Victims = append(a.Victims, &borgpb.Victim{JobUid: id.Job.String(), Index: id.Index, Attempt: id.Attempt})
	}
	return a
}

// batch reads one assignment a line.
func (s *script) batch() *borgpb.Op {
	o, whole := new(borgpb.Assign), s.d
	defer func() { s.d = whole }()
	for line := range strings.Lines(whole.Input) {
		one := *whole
		var err error
		if one.Cmd, one.CmdArgs, err = datadriven.ParseLine("assign " + line); err != nil {
			whole.Fatalf(s.t, "%v", err)
		}
		s.d = &one
		o.Assignments = append(o.Assignments, s.assignment())
	}
	return &borgpb.Op{Op: &borgpb.Op_Assign{Assign: o}}
}

// moves reads a plan, one placement on a line: "move" or "place", and what assign
// takes.
func (s *script) moves() *borgpb.MoveTasks {
	o := new(borgpb.MoveTasks)
	whole := s.d
	defer func() { s.d = whole }()
	for line := range strings.Lines(whole.Input) {
		cmd, args, err := datadriven.ParseLine(line)
		if err != nil {
			whole.Fatalf(s.t, "%v", err)
		}
		s.d = &datadriven.TestData{Pos: whole.Pos, Cmd: cmd, CmdArgs: args}
		if cmd == "place" {
			o.Placement = s.assignment()
		} else {
			o.Moves = append(o.Moves, s.assignment())
		}
	}
	return o
}

func (s *script) report() *borgpb.Op {
	id := s.copyID(s.first(1))
	st := borgpb.AttemptState_value["ATTEMPT_STATE_"+strings.ToUpper(s.first(2))]
	r := &borgpb.TaskReport{
		JobUid: id.Job.String(), Index: id.Index, Attempt: id.Attempt, State: st,
		Restarts: uint32(s.num("restarts", 0)), Pid: s.num("pid", 0), Text: s.arg("text", ""), Addr: s.arg("addr", ""),
		Failures: uint32(s.num("failures", 0)), OomKills: uint32(s.num("oom-kills", 0)), Unwell: s.has("unwell"),
	}
	if s.has("heard") {
		r.AsOfNs = s.cellNs - s.num("ago", 0)
	}
	if s.has("code") {
		r.Exit = &borgpb.Exit{Code: int32(s.num("code", 0))}
	}
	if s.has("ended-for") {
		r.Exit = &borgpb.Exit{Signal: int32(s.num("signal", 15)), Reason: s.arg("ended-for", "")}
	}
	if s.has("oom") {
		r.Exit.Oom, r.Exit.ReasonCode = true, borgpb.ExitReason_EXIT_REASON_CHILD_OUT_OF_MEMORY
		r.Exit.OomProcess, r.Exit.OomBytes = s.arg("oom", ""), 1<<20
	}
	for i, port := range s.list("held") {
		n, err := strconv.ParseUint(port, 10, 32)
		if err != nil {
			s.t.Fatal(err)
		}
		r.HeldPorts = append(r.HeldPorts, &borgpb.HeldPort{Port: uint32(n)})
		if i == 0 {
			r.HeldPorts[i].By = s.arg("by", "")
		}
	}
	return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{
		{Machine: s.first(0), Tasks: []*borgpb.TaskReport{r}},
	}}}}
}

// heard has a machine answer a poll of now: all that runs there still does, and is well.
func (s *script) heard() *borgpb.Op {
	mr := &borgpb.MachineReport{Machine: s.first(0)}
	for p := range s.c.Machine(s.first(0)).Copies() {
		if p.state == attemptRunning {
			mr.Tasks = append(mr.Tasks, &borgpb.TaskReport{JobUid: p.job.uid.String(), Index: p.index, Attempt: p.attempt,
				State: int32(p.state), Restarts: p.restarts, Pid: p.pid, AsOfNs: s.cellNs})
		}
	}
	return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{mr}}}}
}

// fit asks where a task would fit.
func (s *script) fit() string {
	id := s.copyID(s.first(0))
	var b strings.Builder
	for m := range s.c.Machines() {
		p := &Placement{Job: s.c.JobByUID(id.Job), Set: s.c.AllocSetByUID(id.Job), Index: id.Index, Machine: m, AnyPorts: true}
		fmt.Fprintf(&b, "%s: %v", m.name, s.c.Fit(p, nil))
		if r := s.c.CheckPlace(p, nil); r != nil {
			fmt.Fprintf(&b, " (%s)", r.Message)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (s *script) show() string {
	var b strings.Builder
	switch s.first(0) {
	case "asks":
		r := new(borgpb.Resources)
		if j := s.c.Job(mustKey(s.first(1))); j != nil {
			// What is placed is what its spec says.
			if r = j.Spec().Task.Resources; !FromProto(r).Equal(j.Need(0).Resources) {
				s.t.Errorf("%s: its spec asks for %v, and its task for %v", s.first(1), r, j.Need(0).Resources)
			}
		} else {
			r = s.c.sets[mustKey(s.first(1))].spec.Resources
		}
		fmt.Fprintf(&b, "cpu %d mem %d devices %v shares %v\n", r.CpuMilli, r.MemBytes, r.Devices, r.DeviceMilli)
	case "job":
		j := s.c.JobProto(s.c.Job(mustKey(s.first(1))))
		st := j.Status
		fmt.Fprintf(&b, "%s version %d: pending %d running %d (started %d) dead %d (finished %d) stopping %d", word(st.State),
			j.Meta.Version, st.Pending, st.Running, st.Started, st.Dead, st.Finished, st.Stopping)
		if st.Reason != "" {
			fmt.Fprintf(&b, " (%s)", st.Reason)
		}
		b.WriteString("\n")
	case "allocset":
		s.showSet(&b, s.c.sets[mustKey(s.first(1))])
	case "tasks":
		j := s.c.Job(mustKey(s.first(1)))
		for i := range j.Tasks() {
			s.showTask(&b, j, i)
		}
	case "machine":
		m := s.c.Machine(s.first(1))
		fmt.Fprintf(&b, "%s: held cpu %d mem %d ports %d of cpu %d mem %d ports %d\n", m.name,
			m.Held(true).CPUMilli, m.Held(true).MemBytes, m.Held(true).Ports, m.Capacity().CPUMilli, m.Capacity().MemBytes, m.Capacity().Ports)
		if o := m.Held(false); !o.Equal(m.Held(true)) {
			fmt.Fprintf(&b, "  for others than production: held cpu %d mem %d\n", o.CPUMilli, o.MemBytes)
		}
		for p := range m.Copies() {
			fmt.Fprintf(&b, "  %v.%d %s", p.TaskID(), p.attempt, attemptWord(p.State()))
			if p.alloc != nil {
				fmt.Fprintf(&b, " in %s", p.alloc.Name())
			}
			for _, g := range p.Devices() {
				fmt.Fprintf(&b, " %s %s of %d", DeviceText(g.Milli), g.Name, g.Number)
			}
			if res, setNs, ok := p.Reservation(); ok {
				fmt.Fprintf(&b, " reserves cpu %d mem %d since %d s", res.CPUMilli, res.MemBytes, setNs/second)
			}
			if p.stop != nil {
				fmt.Fprintf(&b, " cause %s grace %ds", strings.TrimPrefix(p.Cause().String(), "STOP_CAUSE_"), p.GraceNs()/second)
				b.WriteString(noticeText(p))
			}
			for _, id := range p.After() {
				fmt.Fprintf(&b, " after %v", id)
			}
			b.WriteString("\n")
		}
	case "cron":
		st := s.c.JobProto(s.c.Job(mustKey(s.first(1)))).Status.Cron
		fmt.Fprintf(&b, "suspended %v, last slot %d, since %d s, live %d\n", st.Suspended, st.LastSlotWallNs/minute, st.SinceWallNs/second, st.Live)
		for _, r := range st.Runs {
			fmt.Fprintf(&b, "  %d %s %q by hand %v, %d slots (%s)\n", r.SlotWallNs/minute,
				strings.ToLower(strings.TrimPrefix(r.Outcome.String(), "CRON_OUTCOME_")), r.Job, r.Manual, r.Slots, r.Reason)
		}
	case "saves":
		for _, v := range s.c.SavesOf(s.c.sets[mustKey(s.first(1))]) {
			fmt.Fprintf(&b, "%d.%d on %s by %s: failed %d times, %d s left (%s)\n", v.Index, v.Attempt, v.Machine, v.Job, v.Failures, v.LeftNs/second, v.Reason)
		}
	case "quarantine":
		s.showQuarantine(&b)
	case "volumes":
		s.showVolumes(&b)
	case "seats":
		j := s.c.Job(mustKey(s.first(1)))
		for i := range j.Tasks() {
			fmt.Fprintf(&b, "%d %s of %q\n", i, word(j.rows[i].State()), s.c.TaskProto(j, i, false).Status.Seat)
		}
	case "drain":
		s.showDrain(&b, s.c.MachineProto(s.c.Machine(s.first(1))).Status.Drain)
	case "update":
		u := s.c.UpdateProto(s.c.Job(mustKey(s.first(1))))
		st := u.Status
		fmt.Fprintf(&b, "%s version %d to %d: in place %d restarted %d rescheduled %d skipped %d remaining %d",
			strings.ToLower(strings.TrimPrefix(st.State.String(), "UPDATE_STATE_")), u.Spec.FromVersion, u.Spec.ToVersion,
			st.InPlace, st.Restarted, st.Rescheduled, st.Skipped, st.Remaining)
		if st.Reason != "" {
			fmt.Fprintf(&b, " (%s)", st.Reason)
		}
		if u.Spec.StableVersion != 0 {
			fmt.Fprintf(&b, " back to %d", u.Spec.StableVersion)
		}
		for _, n := range []struct {
			name string
			n    int64
		}{{"failures", int64(st.Failures)}, {"deadline in", st.DeadlineLeftNs / second}, {"closes in", st.CloseLeftNs / second}, {"promotes itself in", st.PromoteLeftNs / second},
			{"extra", int64(st.Extra)}, {"fails for its gate in", st.GateLeftNs / second}} {
			if n.n != 0 {
				fmt.Fprintf(&b, " %s %d", n.name, n.n)
			}
		}
		if st.WaitsFor != "" && u.Spec.Policy != nil {
			fmt.Fprintf(&b, "\n  waits for: %s", st.WaitsFor)
		}
		b.WriteString("\n")
	case "gated":
		s.showGated(&b)
	case "pending":
		for j, i := range s.c.Pending() {
			fmt.Fprintf(&b, "%v\n", TaskID{j.key, i})
		}
		for a := range s.c.PendingAllocs() {
			fmt.Fprintf(&b, "%s\n", a.Name())
		}
	case "allocs":
		set := s.c.sets[mustKey(s.first(1))]
		for a := range set.Allocs() {
			p := s.c.AllocProto(a)
			fmt.Fprintf(&b, "%s %s on %q used cpu %d tasks %v\n", a.Name(), word(p.Status.State), p.Status.Machine, p.Status.Used.CpuMilli, p.Status.Tasks)
		}
	case "labels", "breaches":
		s.showLabels(&b)
	case "secrets":
		for one := range s.c.Secrets() {
			fmt.Fprintf(&b, "%s/%s version %d key %s, %d bytes\n", one.User(), one.Name(), one.Version(), one.KeyID(), len(one.Sealed()))
		}
		fmt.Fprintf(&b, "key in use: %q\n", s.c.CellKey())
	case "bans":
		for ban := range s.c.Bans() {
			fmt.Fprintf(&b, "%s\n", ban.Words())
		}
	case "files":
		user, prefix := s.first(1), ""
		if at := strings.IndexByte(user, '/'); at >= 0 {
			user, prefix = user[:at], user[at+1:]
		}
		for f := range s.c.Files(user, prefix) {
			fmt.Fprintf(&b, "%s/%s version %d %q\n", f.User(), f.Name(), f.Version(), f.Content())
		}
		fmt.Fprintf(&b, "%d changes of files\n", s.c.FileChanges())
	case "time":
		fmt.Fprintf(&b, "cell %ds wall %ds suspect %v\n", s.c.TimeNs()/second, s.c.WallNs()/second-1_700_000_000, s.c.WallSuspect())
	}
	return b.String()
}

func (s *script) showDrain(b *strings.Builder, d *borgpb.Drain) {
	fmt.Fprintf(b, "%q by %q, deadline in %d s, forced %v: evicted %d, left %d\n", d.GetReason(), d.GetUser(), d.GetDeadlineLeftNs()/second, d.GetForced(), d.GetEvicted(), d.GetLeft())
	for _, h := range d.GetBlockers() {
		fmt.Fprintf(b, "  %s waits for %s", h.Task, h.Job)
		if h.WaitNs != 0 {
			fmt.Fprintf(b, " for %d s", h.WaitNs/second)
		}
		fmt.Fprintf(b, ": %s\n", h.Reason)
	}
}

func (s *script) showTask(b *strings.Builder, j *Job, i uint32) {
	t := s.c.TaskProto(j, i, true)
	st := t.Status
	fmt.Fprintf(b, "%d %s attempt %d", i, word(st.State), st.Attempt)
	if st.Machine != "" {
		fmt.Fprintf(b, " %s on %s version %d", attemptWord(st.AttemptState), st.Machine, t.Meta.Version)
	}
	if st.Addr != "" {
		fmt.Fprintf(b, " at %s", st.Addr)
	}
	if st.Restarts > 0 {
		fmt.Fprintf(b, " restarts %d", st.Restarts)
	}
	if st.Failures > 0 {
		fmt.Fprintf(b, " failures %d", st.Failures)
	}
	if why := st.LastExit.GetReason(); why != "" {
		fmt.Fprintf(b, " was ended for %q", why)
	}
	if st.Reason != "" {
		fmt.Fprintf(b, " (%s)", st.Reason)
	}
	if st.Note != "" || len(st.NoteAnnotations) > 0 {
		fmt.Fprintf(b, " says %q %v", st.Note, st.NoteAnnotations)
	}
	b.WriteString("\n")
	for _, a := range st.Attempts {
		fmt.Fprintf(b, "  attempt %d %s on %s", a.Attempt, attemptWord(a.State), a.Machine)
		if a.Cause != 0 {
			fmt.Fprintf(b, " cause %s", strings.TrimPrefix(a.Cause.String(), "STOP_CAUSE_"))
		}
		if a.Exit != nil {
			fmt.Fprintf(b, " exit %d", a.Exit.Code)
		}
		b.WriteString("\n")
	}
}

func attemptWord(s borgpb.AttemptState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "ATTEMPT_STATE_"))
}

func mustKey(s string) JobKey {
	k, err := ParseJobKey(s)
	if err != nil {
		panic(err)
	}
	return k
}

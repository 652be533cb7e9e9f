package borglet

import "borg/proto/borgpb"

// ExitFile is exit.json, which a shim leaves in the copy's directory: how the
// numbered run ended.
type ExitFile struct {
	Run         uint32 `json:"run"`
	Code        int32  `json:"code"`
	Signal      int32  `json:"signal,omitempty"`
	OOM         bool   `json:"oom,omitempty"`
	Unknown     bool   `json:"unknown,omitempty"`
	EndedWallNs int64  `json:"ended_wall_ns"`
	// What could not be done, when the task could not even be started.
	Error string `json:"error,omitempty"`
	// Way is which of the known ways of not starting or of being killed it was.
	Way borgpb.ExitReason `json:"way,omitempty"`
	// With OOM: the process that the kernel killed first, and the memory that it held.
	OOMProcess string `json:"oom_process,omitempty"`
	OOMBytes   int64  `json:"oom_bytes,omitempty"`
	// Why the borglet ended it. No shim knows.
	Reason string `json:"reason,omitempty"`
	// Retry: nothing of the task has run, for a reason that lies in the machine.
	Retry bool `json:"retry,omitempty"`
	// The most memory it used at once, and its processor time in all; zero: not
	// known.
	MaxMemBytes int64 `json:"max_mem_bytes,omitempty"`
	CPUNs       int64 `json:"cpu_ns,omitempty"`
}

// ExitToFile converts how a run ended; nil stays nil.
func ExitToFile(run uint32, e *borgpb.Exit) *ExitFile {
	if e == nil {
		return nil
	}
	return &ExitFile{
		Run: run, Code: e.GetCode(), Signal: e.GetSignal(), OOM: e.GetOom(), Unknown: e.GetUnknown(),
		EndedWallNs: e.GetEndedWallNs(), Error: e.GetError(), Reason: e.GetReason(),
		Way: e.GetReasonCode(), OOMProcess: e.GetOomProcess(), OOMBytes: e.GetOomBytes(),
	}
}

// Exit converts back; nil stays nil.
func (f *ExitFile) Exit() *borgpb.Exit {
	if f == nil {
		return nil
	}
	return &borgpb.Exit{
		Code: f.Code, Signal: f.Signal, Oom: f.OOM, Unknown: f.Unknown,
		EndedWallNs: f.EndedWallNs, Error: f.Error, Reason: f.Reason,
		ReasonCode: f.Way, OomProcess: f.OOMProcess, OomBytes: f.OOMBytes,
	}
}

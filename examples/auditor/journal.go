package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"borg/proto/borgpb"
)

// What a record of the journal is about.
const (
	recordRun   = "run"   // the run begins
	recordAsk   = "ask"   // a mutation is about to be asked for
	recordTold  = "told"  // the cell has answered it
	recordIndex = "index" // a log index that was seen
)

// record is one line of the journal. What a client was told is there before
// its next call, so that a later audit knows all that was acknowledged.
type record struct {
	Kind   string `json:"kind"`
	WallNs int64  `json:"wall_ns"`

	// Of a run.
	Run    string `json:"run,omitempty"`
	Seed   uint64 `json:"seed,omitempty"`
	CellID string `json:"cell_id,omitempty"`

	// Of an ask; the request id joins it with what was told.
	ID    string   `json:"id,omitempty"`
	What  string   `json:"what,omitempty"`
	User  string   `json:"user,omitempty"`
	Name  string   `json:"name,omitempty"`
	Tasks uint32   `json:"tasks,omitempty"`
	Spec  []byte   `json:"spec,omitempty"`
	Plan  plan     `json:"plan,omitempty"`
	Wants []string `json:"wants,omitempty"`
	Tests string   `json:"tests,omitempty"`

	// Of what was told.
	Index    uint64 `json:"index,omitempty"`
	UID      string `json:"uid,omitempty"`
	Version  uint64 `json:"version,omitempty"`
	Repeated bool   `json:"repeated,omitempty"`
	Refusal  string `json:"refusal,omitempty"`
	Message  string `json:"message,omitempty"`
	// The request was another one under the same id.
	Other bool `json:"other,omitempty"`
}

// told is what the cell answered to the request with this id.
func told(id string, r *borgpb.Result) record {
	rec := record{Kind: recordTold, ID: id, Index: r.GetIndex(), UID: r.GetUid(), Version: r.GetVersion(), Repeated: r.GetRepeated()}
	if r.GetRefusal() != nil {
		rec.Refusal, rec.Message = r.GetRefusal().GetKind().String(), r.GetRefusal().GetMessage()
	}
	return rec
}

// journal appends records to a file, one JSON object a line.
type journal struct {
	file *os.File
}

func openJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if os.IsExist(err) {
		return nil, fmt.Errorf("journal %s is there already; audit it with --audit-only, or name another file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	return &journal{f}, nil
}

func (j *journal) write(r record) error {
	if j == nil {
		return nil
	}
	r.WallNs = time.Now().UnixNano()
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	return nil
}

func (j *journal) close() error {
	if j == nil {
		return nil
	}
	return j.file.Close()
}

// readJournal gives each record to note, in order. A last line that was cut
// off by the end of its writer is no record.
func readJournal(in io.Reader, note func(record)) error {
	lines := bufio.NewReader(in)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the journal: %w", err)
		}
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("read the journal: line %d: %w", n, err)
		}
		note(r)
	}
}

package borglet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// NoticePaper is the file beside a copy's papers that says why it gets a SIGTERM. It is
// there before the signal comes, by as long as the task asked to be told ahead, and gone
// when the next run begins.
const NoticePaper = "stop.json"

// Notice is why a run is told to end, and until when it may take (paper §2.5, §4: tasks
// are notified before they are preempted).
type Notice struct {
	// One word: "kill", "preemption", "update", "drain", ..., "unhealthy".
	Cause string `json:"cause"`
	// Who or what is behind it, for people; may be empty.
	Reason string `json:"reason,omitempty"`
	// When this was written, when SIGTERM comes, and when SIGKILL follows.
	At       time.Time `json:"at"`
	Sigterm  time.Time `json:"sigterm"`
	Deadline time.Time `json:"deadline"`
	// Log index of the decision; zero: the borglet's own.
	Index uint64 `json:"index,omitempty"`
}

// notice is what a copy is told whose timer to be killed is set.
func (c *Core) notice(t *task) Notice {
	at := func(monoNs int64) time.Time {
		return time.Unix(0, c.now.WallNs+max(monoNs-c.now.MonoNs, 0)).UTC()
	}
	n := Notice{At: at(0), Sigterm: at(t.termNs), Deadline: at(t.dueNs)}
	if t.Stop != nil {
		n.Cause, n.Reason, n.Index = causeWord(t.Stop.Cause), t.Stop.Reason, t.Stop.Index
	} else {
		n.Cause, n.Reason = "unhealthy", t.health.ended
		if t.health.overran {
			n.Cause = "max_runtime"
		}
	}
	return n
}

// maxReasonBytes bounds what a task is told of who is behind its end; cells say less.
const maxReasonBytes = 1024

// maxNoticeNs is more than any cell orders.
const maxNoticeNs = int64(90 * 24 * time.Hour)

func newStopOrder(s *borgrpc.Stop) *StopOrder {
	return &StopOrder{
		Cause: s.GetCause(), Reason: cut(s.GetReason(), maxReasonBytes), Index: s.GetIndex(),
		GraceNs: min(max(s.GetGraceNs(), 0), maxNoticeNs), NoticeNs: min(max(s.GetNoticeNs(), 0), maxNoticeNs),
	}
}

// endNs is how long after the order SIGKILL comes.
func (o *StopOrder) endNs() int64 { return o.NoticeNs + o.GraceNs }

// setTerm sets when SIGTERM is due to a run that is told before; a later order may bring
// it forward.
func (c *Core) setTerm(t *task, first bool) {
	termNs := c.now.MonoNs + t.Stop.NoticeNs
	if first || termNs < t.termNs {
		t.termNs = termNs
	}
	if t.terminated || t.termNs <= c.now.MonoNs {
		t.termNs = 0
	}
}

// warn tells a run of the SIGTERM that will come, once.
func (c *Core) warn(t *task) {
	if t.warned {
		return
	}
	t.warned = true
	c.emit(Warn{t.ID, t.Run, c.notice(t), t.Desired.GetSpec().GetNoticeSignal()})
}

func causeWord(c borgpb.StopCause) string {
	word := strings.ToLower(strings.TrimPrefix(c.String(), "STOP_CAUSE_"))
	return strings.ReplaceAll(word, "_", "-")
}

// notify puts a notice beside the papers of a copy; one without papers gets none.
func (p *papers) notify(id ID, n Notice) error {
	if p == nil {
		return nil
	}
	text, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return fmt.Errorf("write notice: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, live := p.due[id]; !live {
		return nil
	}
	path := filepath.Join(p.path(id), NoticePaper)
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o444); err != nil {
		return fullPapers(errors.Join(fmt.Errorf("write notice: %w", err), os.Remove(path+".new")))
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write notice: %w", err)
	}
	return nil
}

// unnotify takes the notice of an earlier run away.
func (p *papers) unnotify(id ID) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := os.Remove(filepath.Join(p.path(id), NoticePaper)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove an earlier notice: %w", err)
	}
	return nil
}

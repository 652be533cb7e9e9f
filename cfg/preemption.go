package cfg

import "borg/proto/borgpb"

// notice checks what a task says of its end.
func (c check) notice(where string, t *borgpb.TaskSpec) {
	c.span(join(where, "notice_ns"), t.NoticeNs)
	if t.NoticeSignal && t.NoticeNs == 0 {
		c.bad(join(where, "notice_signal"), `add notice = "10s"`, "there is no notice to send it with")
	}
}

// preemptWait checks how long a job or alloc set waits for those whose place it takes.
func (c check) preemptWait(waitNs int64, mode borgpb.Preempt) {
	if waitNs > maxPreemptWaitNs {
		c.bad("preempt_wait_ns", "", "%s is too long; at most %s", quantityText(waitNs, unitTime), quantityText(maxPreemptWaitNs, unitTime))
	}
	if waitNs != 0 && mode == borgpb.Preempt_PREEMPT_NEVER {
		c.bad("preempt_wait_ns", "leave one of them out", "with preempt = \"never\" it takes nobody's place")
	}
}

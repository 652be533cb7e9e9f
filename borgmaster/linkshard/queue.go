package linkshard

import "container/heap"

// rank is which polls go first. Starts, stops and reports of changes go before rounds of
// machines at rest, of which some go all the same, so that no machine waits for ever. Polls
// that need a handshake have a queue of their own: they are few, by their budget, and wait
// for it.
type rank int

const (
	unconnected rank = iota
	urgent
	atRest
	ranks
)

// restShare: of so many polls one is of a machine at rest, if one is due.
const restShare = 4

// queues are the machines that wait for a poll.
type queues struct {
	by [ranks]pollQueue
	// Urgent polls since the last one of a machine at rest.
	urgents int
}

// next returns when the first poll is due, if the next handshake may be made at shakeNs.
func (q *queues) next(shakeNs int64) (ns int64, ok bool) {
	for r := range q.by {
		if len(q.by[r]) == 0 {
			continue
		}
		due := q.by[r][0].dueNs
		if rank(r) == unconnected {
			due = max(due, shakeNs)
		}
		if !ok || due < ns {
			ns, ok = due, true
		}
	}
	return ns, ok
}

func (q *queues) isDue(r rank, now int64) bool { return len(q.by[r]) > 0 && q.by[r][0].dueNs <= now }

// pop takes out the machine to poll now; nil if none is due.
func (q *queues) pop(now, shakeNs int64) *polled {
	var first rank
	switch rests := q.isDue(atRest, now); {
	case q.isDue(unconnected, now) && shakeNs <= now:
		first = unconnected
	case q.isDue(urgent, now) && (q.by[urgent][0].moved || !rests || q.urgents < restShare-1):
		first = urgent
		q.urgents++
	case rests:
		first = atRest
		q.urgents = 0
	default:
		return nil
	}
	return heap.Pop(&q.by[first]).(*polled)
}

func (c *Core) enqueue(m *polled, due int64, r rank) {
	m.dueNs, m.rank = due, r
	if !m.connected {
		m.rank = unconnected
	}
	heap.Push(&c.queues.by[m.rank], m)
}

func (c *Core) unqueue(m *polled) {
	if m.place >= 0 {
		heap.Remove(&c.queues.by[m.rank], m.place)
	}
}

// pollQueue is a heap by due time, then name.
type pollQueue []*polled

func (q pollQueue) Len() int { return len(q) }
func (q pollQueue) Less(i, j int) bool {
	if q[i].dueNs != q[j].dueNs {
		return q[i].dueNs < q[j].dueNs
	}
	return q[i].name < q[j].name
}
func (q pollQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}
func (q *pollQueue) Push(x any) {
	m := x.(*polled)
	m.place = len(*q)
	*q = append(*q, m)
}
func (q *pollQueue) Pop() any {
	last := len(*q) - 1
	m := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	m.place = -1
	return m
}

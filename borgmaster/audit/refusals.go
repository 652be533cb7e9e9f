package audit

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"borg/proto/borgpb"
)

const (
	// refusalWindow is how long refusals of the same caller, verb, kind and object are
	// counted in one record.
	refusalWindow = 10 * time.Minute
	// maxRefusalsOfShare is how many records of refusals a share begins in a window;
	// what else it is refused is counted by verb and kind alone.
	maxRefusalsOfShare = 1_024
	// maxRefusalsByVerb is how many such records it begins; the rest is counted by kind.
	maxRefusalsByVerb = 256
	// maxRefusalsOpen bounds the records that are counted in, of all shares.
	maxRefusalsOpen = 16_384
	// maxTextBytes is the most of each text of a refusal that is kept.
	maxTextBytes = 1 << 10
)

// refusals counts refusals in the records that were written for the first of them.
// The caller holds the lock of its Log or Local.
type refusals struct {
	journal *journal
	open    map[refusalKey]*refusalWindowed
	// How many of open a share has begun.
	begun map[share]int
	// When the windows that have ended are removed next.
	sweepNs int64
}

type refusalKey struct {
	share share
	verb  string
	kind  borgpb.RefusalKind
	// SHA-256 of the object; zero: of those beyond maxRefusalsOfShare.
	object [sha256.Size]byte
}

// refusalWindowed is the record of a window that has not ended.
type refusalWindowed struct {
	at      place
	firstNs int64
	count   uint64
}

func newRefusals(j *journal) refusals {
	return refusals{journal: j, open: map[refusalKey]*refusalWindowed{}, begun: map[share]int{}}
}

// write writes records, except the refusals that are counted in records from before.
func (f *refusals) write(j *journal, records []*borgpb.AuditRecord) error {
	var batches []*borgpb.AuditBatch
	var begun []*refusalWindowed
	for _, r := range records {
		var w *refusalWindowed
		if r.Refusal != nil {
			if r, w = f.counted(r); r == nil {
				continue
			}
		}
		if n := len(batches); w == nil && n > 0 && begun[n-1] == nil && shareOf(batches[n-1].Records[0]) == shareOf(r) {
			batches[n-1].Records = append(batches[n-1].Records, r)
			continue
		}
		batches, begun = append(batches, &borgpb.AuditBatch{Records: []*borgpb.AuditRecord{r}}), append(begun, w)
	}
	if len(batches) == 0 {
		return nil
	}
	places, err := j.append(batches...)
	if err != nil {
		return err
	}
	for i, w := range begun {
		if w != nil {
			w.at = places[i]
		}
	}
	return nil
}

// counted counts r in the record of its window. If there is none, it returns the
// record to write, and where the window begins once it is written.
func (f *refusals) counted(r *borgpb.AuditRecord) (toWrite *borgpb.AuditRecord, w *refusalWindowed) {
	f.sweep(r.WallNs)
	key := refusalKey{share: shareOf(r), verb: clip(r.Verb), kind: r.Refusal.Kind, object: sha256.Sum256([]byte(r.Object))}
	if f.count(key, r.WallNs) {
		return nil, nil
	}
	r = bounded(r)
	_, known := f.open[key]
	if !known && f.begun[key.share] >= maxRefusalsOfShare {
		key.object = [sha256.Size]byte{}
		if f.open[key] == nil && f.begun[key.share] >= maxRefusalsOfShare+maxRefusalsByVerb {
			// The caller makes up verbs, too.
			key.verb, r.Verb = "", ""
		}
		if f.count(key, r.WallNs) {
			return nil, nil
		}
		r.Object, r.Refusal.Object = "", ""
		r.Refusal.Message = clip(fmt.Sprintf("more than %d objects were refused within %s; the first of the others: %s", maxRefusalsOfShare, refusalWindow, r.Refusal.Message))
		_, known = f.open[key]
	}
	if len(f.open) >= maxRefusalsOpen {
		clear(f.open)
		clear(f.begun)
		known = false
	}
	if !known {
		f.begun[key.share]++
	}
	w = &refusalWindowed{firstNs: r.WallNs, count: 1}
	f.open[key] = w
	return r, w
}

// count counts one more refusal in an open window.
func (f *refusals) count(key refusalKey, nowNs int64) bool {
	w := f.open[key]
	if w == nil || nowNs-w.firstNs >= int64(refusalWindow) || w.at.number == 0 {
		return false
	}
	if !f.journal.recount(w.at, counter{w.count + 1, nowNs}) {
		return false
	}
	w.count++
	return true
}

// sweep forgets the windows that have ended.
func (f *refusals) sweep(nowNs int64) {
	if nowNs < f.sweepNs {
		return
	}
	f.sweepNs = nowNs + int64(refusalWindow)
	clear(f.begun)
	for key, w := range f.open {
		if nowNs-w.firstNs >= int64(refusalWindow) {
			delete(f.open, key)
		} else {
			f.begun[key.share]++
		}
	}
}

// bounded is a copy of a refusal's record as it is kept: its texts are bounded, and of
// its op there is only the hash. Nobody has checked what was refused.
func bounded(r *borgpb.AuditRecord) *borgpb.AuditRecord {
	kept := &borgpb.AuditRecord{
		Index: r.Index, N: r.N, WallNs: r.WallNs, Role: r.Role, Who: clip(r.Who), Verb: clip(r.Verb), Object: clip(r.Object),
		Command: clip(r.Command), ConfigHash: clip(r.ConfigHash), Reason: clip(r.Reason), RequestId: clip(r.RequestId),
		OpHash: r.OpHash, Replica: r.Replica, Admin: r.Admin, Count: 1, LastWallNs: r.WallNs,
		Refusal: &borgpb.Refusal{Kind: r.Refusal.Kind, Object: clip(r.Refusal.Object), Message: clip(r.Refusal.Message), Field: clip(r.Refusal.Field)},
	}
	if len(r.Op) > 0 {
		hash := sha256.Sum256(r.Op)
		kept.OpHash = hash[:]
	}
	return kept
}

// clip bounds a text that was never checked.
func clip(text string) string {
	if len(text) > maxTextBytes {
		text = strings.ToValidUTF8(text[:maxTextBytes], "")
	}
	return strings.ToValidUTF8(text, "\ufffd")
}

package admission

import (
	"cmp"
	"fmt"
)

// Config is the rates that one user may have at one replica. Zero fields take the
// defaults.
type Config struct {
	// Changes, and reads, a second. Both are far above what one user needs: what is
	// shared in a crowd is decided by the queue.
	WritesPerS, ReadsPerS int64
	// Replica is named in refusals.
	Replica uint64
	// Turns of reads at a time; 0: one.
	ReadPlaces int64
}

// Validate checks the config.
func (c Config) Validate() error {
	if c.WritesPerS < 0 || c.ReadsPerS < 0 {
		return fmt.Errorf("a user may change %d times and read %d times a second: neither can be negative; 0 is the default", c.WritesPerS, c.ReadsPerS)
	}
	return nil
}

// DefaultWritesPerS and DefaultReadsPerS are more than a cell of five replicas does on
// one machine.
const (
	DefaultWritesPerS = 20_000
	DefaultReadsPerS  = 10_000
)

const (
	// Burst of a user after a quiet time, as time at the full rate.
	burstNs = 2e9
	// Users who are remembered. Those above share what one has.
	maxUsers = 16_384
	// A write costs 1, and 1 more for each of so many bytes.
	bytesPerCost = 4 << 10
	// Writes that wait for a place in the log, and their bytes: of all, and of one user.
	maxWaiting        = 8_192
	maxWaitingBytes   = 32 << 20
	maxWaitingOf      = 2_048
	maxWaitingBytesOf = 8 << 20
	// A write waits so long at most: after 500 ms a client asks another replica too.
	maxWaitNs = 400e6
	// A user is not refused for the expected wait while fewer than minWaiting writes wait, nor in
	// the first epoch: a new user's rate is low only because it asked for little.
	minWaiting = 64
	// A user's writes that a replica has under way, be it that it has passed them on.
	maxUnderWay = 4_096
	// A user who is turned away and still asks more than heedlessCalls times is turned away
	// for twice as long the next time, up to maxStrikes times. After forgiveNs it is forgotten.
	heedlessCalls = 64
	maxStrikes    = 4
	// A user who was turned away may have half as many writes under way at a replica as before,
	// at least leastAllowed, and one more each time that many are done, until nothing was
	// refused for forgiveNs. A user above that is refused by the heads of calls for momentNs.
	leastAllowed = 4
	forgiveNs    = 5e9
	momentNs     = 50e6
	// A user who asks for more all the same, and is not turned away for doubleNs, may have twice
	// as many each time: the limit grows slowly so that the backlog does not reach the log at once.
	doubleNs = 1e9
	// heardNs is the maximum time from a call's head to Begin. Calls heard earlier and not begun are
	// no longer counted.
	heardNs = 10e6
	// What one user may have out of turn, beyond the window, for all users.
	maxOutOfTurn = 64
	// A user asks for little with fewer than lightPlaces writes in the log and waiting, or with
	// none waiting and less than 1/lightShare of all that is in the log, but not within
	// heavyForNs of having asked for much. That is longer than a write takes, so a user who
	// repeats a whole batch when it is answered counts as before.
	lightPlaces = 4
	lightShare  = 8
	heavyForNs  = 1e9
	// A turn is worth so much.
	turnCost = 8
)

// Core is the admission of one replica. W is who waits. It is not safe for concurrent
// use.
type Core[W any] struct {
	cfg   Config
	users map[string]*user[W]
	// Users with writes that wait, in the order of their turns.
	ring []*user[W]
	win  window
	// What waits.
	waiting, waitingBytes int
	outOfTurn             int
	// Users who ask for little and did so lately beside others who ask for much, with the
	// epoch of their last write. The window is small as long as there are any.
	lights map[*user[W]]int64
	// No turns before that.
	pausedNs int64
	// Writes with a place in the log, and those of them that are not light.
	placed, heavy int
	stats         Stats
	// Time of the last sweep over users.
	sweptNs int64
}

// Stats counts what was decided.
type Stats struct {
	// Admitted and refused since the start.
	Writes, Reads                uint64
	WritesRefused, ReadsRefused  uint64
	WritesWaited, WritesExpired  uint64
	Users, Waiting, WaitingBytes int
	Window, Used                 int64
	BaseNs, LightNs              int64
	MaxWaiting, MaxUsers, Crowd  int
	MaxWaitingBytes              int
}

type user[W any] struct {
	name          string
	writes, reads bucket
	// Work of the user's changes: the tasks and allocs that they touch.
	work budget
	// Time in turns of reads.
	readTime budget
	// Streams and reads of much that have begun.
	opens budget
	// Bytes of changes.
	logBytes budget
	// When large changes are worth another try, as the user was told, and how often that was.
	workNs   int64
	workTold int
	// End of the time in which the user's writes are refused by their heads; zero if they are not.
	closedNs int64
	why      *Refusal
	// Calls that came all the same since then, and how often in a row there were many.
	heedless, strikes int
	queue             []*Place[W]
	bytes             int
	cost              int64
	// Writes with a place in the log.
	placed int
	// When the user last asked for much.
	heavyNs int64
	// Writes that began here and are not answered yet.
	underWay int
	// How many may be under way since the user was turned away, and how many were done since
	// that number grew; 0: as many as anybody may have.
	allowed, doneOfAllowed int
	// When it became less, and when the user was last refused anything.
	halvedNs, refusedNs int64
	// When it doubles, if the user is still refused for it.
	doublesNs int64
	// Until then no more heads of the user's writes are let in. Those let in before may begin:
	// refusing them afterwards would get nothing done.
	heldNs int64
	held   *Refusal
	// Writes whose heads were let in since heardNs and that have not begun.
	heard   int
	heardNs int64
	credit  int64
	// In the ring, since that epoch.
	turns  bool
	joined int64
	// Cost that got a place in this epoch, and an average of those before.
	granted int64
	rate    int64
	epoch   int64
}

// Place is a write on its way to the log.
type Place[W any] struct {
	Who     W
	user    *user[W]
	cost    int64
	bytes   int
	sinceNs int64
	// When it got its place.
	placedNs int64
	state    placeState
	// Its user asks for little.
	light     bool
	outOfTurn bool
}

type placeState uint8

const (
	waits placeState = iota
	placed
	left
)

// Placed says whether it has its place in the log.
func (p *Place[W]) Placed() bool { return p.state == placed }

// Late is a write that waited in vain.
type Late[W any] struct {
	Place   *Place[W]
	Refusal *Refusal
}

// New returns a core that knows nobody.
func New[W any](cfg Config) *Core[W] {
	cfg.WritesPerS = cmp.Or(cfg.WritesPerS, DefaultWritesPerS)
	cfg.ReadsPerS = cmp.Or(cfg.ReadsPerS, DefaultReadsPerS)
	cfg.ReadPlaces = cmp.Or(cfg.ReadPlaces, 1)
	return &Core[W]{cfg: cfg, users: map[string]*user[W]{}, lights: map[*user[W]]int64{}, win: newWindow(), sweptNs: -momentNs}
}

// bucket is a token bucket: the time at which it would be full again, were it filled
// at its rate. What is taken of it moves that on.
type bucket int64

// take takes so much if there is any; otherwise it says when there will be.
func (b *bucket) take(now, cost, perS int64) (waitNs int64, ok bool) {
	if wait := int64(*b) - now - burstNs; wait > 0 {
		return wait, false
	}
	*b = bucket(max(int64(*b), now) + cost*1e9/perS)
	return 0, true
}

// of returns a user, and adds a new one.
func (c *Core[W]) of(now int64, name string) *user[W] {
	u := c.users[name]
	if u != nil {
		return u
	}
	if len(c.users) >= maxUsers && now-c.sweptNs >= momentNs {
		c.sweep(now)
		c.sweptNs = now
	}
	if len(c.users) >= maxUsers {
		name = ""
		if u = c.users[name]; u != nil {
			return u
		}
	}
	u = &user[W]{name: name, heavyNs: -heavyForNs}
	c.users[name] = u
	return u
}

// known returns the user that calls of that name count for; nil: none of them counts now.
func (c *Core[W]) known(name string) *user[W] {
	if u := c.users[name]; u != nil || len(c.users) < maxUsers {
		return u
	}
	return c.users[""]
}

// sweep forgets the users that have nothing here that counts.
func (c *Core[W]) sweep(now int64) {
	for name, u := range c.users {
		if u.idle(now) {
			delete(c.users, name)
		}
	}
}

func (u *user[W]) idle(now int64) bool {
	return len(u.queue) == 0 && u.placed == 0 && u.underWay == 0 && !u.turns && int64(u.writes) <= now && int64(u.reads) <= now && int64(max(u.work, u.readTime, u.logBytes, u.opens)) <= now && u.closedNs <= now
}

// Read takes a read of that cost from a user's bucket.
func (c *Core[W]) Read(now int64, name string, cost int64) *Refusal {
	u := c.of(now, name)
	if wait, ok := u.reads.take(now, cost, c.cfg.ReadsPerS); !ok {
		c.stats.ReadsRefused++
		return refuse(name, wait, "borgmaster --user-reads", "asks replica %d for more than %d reads a second, each page of a list counting as %d", c.cfg.Replica, c.cfg.ReadsPerS, ListCost)
	}
	c.stats.Reads++
	return nil
}

// ListCost is what reading a list costs, where one object costs 1.
const ListCost = 50

// Closed refuses a write by its head, before it is heard, if there is no room for it
// anyhow, or its user was turned away lately and has as many under way as went well since.
func (c *Core[W]) Closed(now int64, name string) *Refusal {
	u := c.known(name)
	if u == nil {
		return nil
	}
	if now-u.heardNs > heardNs {
		// Not all that are heard begin.
		u.heard, u.heardNs = 0, now
	}
	if r := c.away(now, u); r != nil {
		return r
	}
	if u.heldNs > now {
		c.stats.WritesRefused++
		u.refusedNs = now
		return u.held.later(u.heldNs - now)
	}
	if r := c.tooMany(now, u, u.underWay+u.heard); r != nil {
		u.heldNs, u.held = now+momentNs, r
		return r
	}
	u.heard++
	return nil
}

// tooMany refuses a write beyond what a user who was turned away may have under way.
func (c *Core[W]) tooMany(now int64, u *user[W], has int) *Refusal {
	if !u.awayLately(now) {
		u.allowed, u.doneOfAllowed = 0, 0
	}
	if u.allowed == 0 || has < u.allowed {
		return nil
	}
	if u.doublesNs <= now {
		u.allowed, u.doublesNs = 2*u.allowed, now+doubleNs
		return nil
	}
	c.stats.WritesRefused++
	u.refusedNs = now
	return refuse(u.name, maxWaitNs/2, "docs/overload.md", "was turned away by replica %d a moment ago, and has %d changes under way", c.cfg.Replica, has)
}

// away refuses a write of a user who was turned away a moment ago.
func (c *Core[W]) away(now int64, u *user[W]) *Refusal {
	if u.closedNs <= now {
		return nil
	}
	c.stats.WritesRefused++
	u.refusedNs = now
	u.heedless++
	return u.why.later(u.closedNs - now)
}

// Close notes that the elected master has no room for a user's writes.
func (c *Core[W]) Close(now int64, name string, why *Refusal) { c.close(now, c.of(now, name), why) }

// close turns a user away for half of the time that the refusal names: after that there should
// be room, and until then the user costs no work. A user that ignores it is turned away for
// longer each time.
func (c *Core[W]) close(now int64, u *user[W], why *Refusal) {
	u.halve(now)
	if u.closedNs > now {
		return
	}
	switch {
	case now-u.closedNs > forgiveNs:
		u.strikes = 0
	case u.heedless > heedlessCalls:
		u.strikes = min(u.strikes+1, maxStrikes)
	default:
		u.strikes = max(u.strikes-1, 0)
	}
	u.heedless = 0
	u.closedNs, u.why = now+min(why.RetryNs/2<<u.strikes, maxRetryNs), why
}

// awayLately reports whether the user was turned away and that is not forgiven yet. The time
// away does not count: a client that waits is silent meanwhile, and then sends its whole backlog.
func (u *user[W]) awayLately(now int64) bool {
	return u.allowed > 0 && now-max(u.refusedNs, u.closedNs) <= forgiveNs
}

// halve allows a user half of what is under way. What was turned away together counts once.
func (u *user[W]) halve(now int64) {
	if u.allowed > 0 && now-u.halvedNs < epochNs {
		return
	}
	had := u.underWay
	if u.awayLately(now) {
		had = min(had, u.allowed)
	}
	u.allowed, u.doneOfAllowed = max(had/2, leastAllowed), 0
	u.halvedNs, u.refusedNs, u.doublesNs = now, now, now+forgiveNs
}

func costOf(bytes int) int64 { return 1 + int64(bytes)/bytesPerCost }

// write takes a write from its user's bucket.
func (c *Core[W]) write(now int64, u *user[W], name string, bytes int) *Refusal {
	if wait, ok := u.writes.take(now, costOf(bytes), c.cfg.WritesPerS); !ok {
		r := refuse(name, wait, "borgmaster --user-writes", "asks replica %d for more than %d changes a second, each counting once and once more for each %d KiB", c.cfg.Replica, c.cfg.WritesPerS, bytesPerCost>>10)
		c.close(now, u, r)
		return r
	}
	return nil
}

// Begin admits a write at the replica that is asked. If it is admitted, End must be
// called when it is answered.
func (c *Core[W]) Begin(now int64, name string, bytes int) *Refusal {
	u := c.of(now, name)
	u.heard = max(u.heard-1, 0)
	r := c.away(now, u)
	if r == nil {
		r = c.tooMany(now, u, u.underWay)
	}
	if r != nil {
		return r
	}
	if u.underWay >= maxUnderWay {
		r = refuse(name, maxWaitNs/2, "docs/limits.md: maxUnderWay", "has %d changes under way at replica %d", u.underWay, c.cfg.Replica)
	} else {
		r = c.write(now, u, name, bytes)
	}
	if r != nil {
		c.stats.WritesRefused++
		return r
	}
	u.underWay++
	return nil
}

// End releases what Begin counted. done reports whether the write was not refused later.
func (c *Core[W]) End(name string, done bool) {
	u := c.users[name]
	if u == nil || u.underWay == 0 {
		// It was counted with those above the bound.
		u = c.users[""]
	}
	if u == nil || u.underWay == 0 {
		return
	}
	u.underWay--
	if !done || u.allowed == 0 {
		return
	}
	if u.doneOfAllowed++; u.doneOfAllowed >= u.allowed {
		u.allowed, u.doneOfAllowed = u.allowed+1, 0
	}
}

// Stats returns how it stands.
func (c *Core[W]) Stats() Stats {
	s := c.stats
	s.Users, s.Waiting, s.WaitingBytes, s.Crowd = len(c.users), c.waiting, c.waitingBytes, len(c.ring)
	s.Window, s.Used, s.BaseNs, s.LightNs = c.win.size, c.win.used, c.win.base(), c.win.lastLightNs
	s.MaxWaiting, s.MaxUsers, s.MaxWaitingBytes = maxWaiting, maxUsers, maxWaitingBytes
	return s
}

func (s Stats) String() string {
	return fmt.Sprintf("%d of %d users wait, %d writes, %d of %d places", s.Crowd, s.Users, s.Waiting, s.Used, s.Window)
}

package cell

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"borg/proto/borgpb"
	"borg/proto/weight"
)

// FormatStateBudgets is the format in which budgets of the replicated state began.
const FormatStateBudgets = 12

// measure describes a Measure.
type measure struct {
	// As people write it.
	name string
	// What it is, in the plural.
	what string
	// What one user may hold if nobody said otherwise, and what all may.
	user, cell int64
}

// measures are in the order of their numbers.
var measures = [numMeasures + 1]measure{
	measureTasks:       {"tasks", "tasks", maxTasksOfUser, maxLiveTasks},
	measureAllocs:      {"allocs", "allocs", maxAllocsOfUser, maxAllocs},
	measureObjects:     {"objects", "jobs and alloc sets", maxObjectsOfUser, maxObjects},
	measureCronJobs:    {"cron-jobs", "cron jobs", maxCronJobsOfUser, maxCronJobs},
	measureBytes:       {"bytes", "bytes of specs, labels, annotations, notes and secrets", maxStateBytesOfUser, maxStateBytes},
	measureDeadObjects: {"dead-objects", "dead jobs and alloc sets", maxDeadObjectsOfUser, maxDeadObjects},
	measureDeadTasks:   {"dead-tasks", "dead tasks", maxDeadTasksOfUser, maxDeadTasks},
	measureDeadBytes:   {"dead-bytes", "bytes of dead jobs and alloc sets", maxDeadBytesOfUser, maxDeadBytes},
	measureFiles:       {"files", "files", maxFilesOfUser, maxFiles},
	measureFileBytes:   {"file-bytes", "bytes of files", maxFileBytesOfUser, maxFilesBytes},
	measureSecrets:     {"secrets", "secrets", maxSecretsOfUser, maxSecretsOfCell},
	measureVolumes:     {"volumes", "volumes", maxVolumesOfUser, maxVolumes},
	measureKeptDisk:    {"kept-disk-bytes", "bytes of disk in volumes that are kept", maxKeptDiskOfUser, maxKeptDisk},
	measureRequests:    {"requests", "requests that are remembered", maxRequestsOfUser, maxRequests},
}

// Measures are all measures, in order.
var Measures = func() (all []Measure) {
	for m := 1; m <= numMeasures; m++ {
		all = append(all, Measure(m))
	}
	return all
}()

// MeasureName returns the name of a measure, or its number if this build does not know it.
func MeasureName(m Measure) string {
	if m <= 0 || int(m) > numMeasures {
		return m.String()
	}
	return measures[m].name
}

// MeasureNamed returns the measure of that name; zero if there is none.
func MeasureNamed(name string) Measure {
	for _, m := range Measures {
		if measures[m].name == name {
			return m
		}
	}
	return 0
}

// CountsDead reports whether a measure counts dead objects.
func CountsDead(m Measure) bool {
	return m == measureDeadObjects || m == measureDeadTasks || m == measureDeadBytes
}

// Forgets reports whether the cell, at the budget of a measure, forgets the user's oldest
// entries instead of refusing new ones.
func Forgets(m Measure) bool { return CountsDead(m) || m == measureRequests }

// StateTotal returns how much of a measure the cell may hold, and how much of that is
// reserved for production and admins.
func StateTotal(m Measure) (total, reserved int64) {
	total = measures[m].cell
	if m == measureTasks || m == measureAllocs || m == measureObjects || m == measureBytes {
		reserved = total / 1000 * stateReserveMilli
	}
	return total, reserved
}

// stateBudget is how much of the state one user may hold, or each user by default.
type stateBudget struct {
	mark
	// Empty for the default of all users.
	user string
	// Zero means the default of that measure.
	amounts StateUse
	gone    bool
}

type stateBudgets struct {
	byUser map[string]*stateBudget
	// Sorted by user.
	list []*stateBudget
}

// StateBudget returns how much of a measure a user may hold.
func (c *Cell) StateBudget(user string, m Measure) int64 { return c.stateBudgets.of(user).amount(m) }

// userBudget is what binds one user: the user's own budget and the default of all users; nil
// where there is none.
type userBudget struct{ own, all *stateBudget }

func (s *stateBudgets) of(user string) userBudget { return userBudget{s.byUser[user], s.byUser[""]} }

// amount returns how much of a measure the user may hold.
func (u userBudget) amount(m Measure) int64 {
	if u.own != nil && u.own.amounts[m] != 0 {
		return u.own.amounts[m]
	}
	if u.all != nil && u.all.amounts[m] != 0 {
		return u.all.amounts[m]
	}
	return measures[m].user
}

// WholeState returns an op that sets the budget of every user to the total of the cell, for a
// cell that is loaded from a recording without its budgets.
func WholeState() *borgpb.Op {
	o := &borgpb.SetStateBudget{}
	for _, m := range Measures {
		o.Amounts = append(o.Amounts, &borgpb.StateAmount{Measure: m, Amount: measures[m].cell})
	}
	return &borgpb.Op{Op: &borgpb.Op_SetStateBudget{SetStateBudget: o}}
}

// HasStateBudget reports whether a user has a budget of their own for a measure.
func (c *Cell) HasStateBudget(user string, m Measure) bool {
	b := c.stateBudgets.byUser[user]
	return user != "" && b != nil && b.amounts[m] != 0
}

// askedByAdmin reports whether an admin asks for the op at hand, and no task of one.
func (c *Cell) askedByAdmin() bool {
	who := c.now.asker
	return who.GetUser() != "" && who.GetTask() == "" && c.Has(who.User, Admin)
}

// checkState refuses what makes a user hold more of the state than their budget, or the
// cell more than its total. priority is that of the object: production may use the
// reserve of the total, and so may an admin, whom the user's budget does not bind.
func (c *Cell) checkState(user string, priority int32, more *StateUse) *borgpb.Refusal {
	used, all := c.stateInTrial(user)
	budget := c.stateBudgets.of(user)
	for i, n := range more {
		if n <= 0 {
			continue
		}
		m := Measure(i)
		holds, total := used[m], all[m]
		if m == measureTasks {
			// What is new may count on what the user stops: it is charged once.
			stops := c.stopUseOf(user).copies
			holds += stops - min(stops, n)
			total += c.stopCopies - min(stops, n)
		}
		if most := budget.amount(m); holds+n > most && !c.askedByAdmin() {
			return c.overBudget(user, m, holds, n, most)
		}
		if r := c.checkStateTotal(m, priority, total, n); r != nil {
			return r
		}
	}
	c.holdInTrial(user, more)
	return nil
}

// checkStateTotal refuses more of a measure than the cell may hold in all.
func (c *Cell) checkStateTotal(m Measure, priority int32, all, more int64) *borgpb.Refusal {
	most, reserved := StateTotal(m)
	if all+more <= most-reserved {
		return nil
	}
	mayUseReserve := isProd(priority) || c.askedByAdmin()
	if !mayUseReserve {
		most -= reserved
	}
	if all+more <= most {
		return nil
	}
	text := fmt.Sprintf("the cell has %d %s, and this asks for %d more; at most %d", all, measures[m].what, more, most)
	if reserved > 0 && !mayUseReserve {
		text += fmt.Sprintf(" below production: %d more are reserved for production and admins", reserved)
	}
	return limit("", "%s. End jobs or alloc sets; borgcfg quota list shows who holds what", text)
}

// overBudget says what the budget of a user is, what he uses, and what to do.
func (c *Cell) overBudget(user string, m Measure, used, more, most int64) *borgpb.Refusal {
	return limit("", "user %s may hold %d %s, holds %d, and asks for %d more. End jobs or alloc sets%s. See borgcfg quota show %s",
		user, most, measures[m].what, used, more, raiseAdvice(user, m, used+more), user)
}

// raiseAdvice ends a sentence with how an admin raises a user's budget of a measure to an amount,
// if one can.
func raiseAdvice(user string, m Measure, amount int64) string {
	if most := measures[m].cell; amount > most {
		return fmt.Sprintf("; no admin can allow that much: the cell holds at most %d %s", most, measures[m].what)
	}
	return fmt.Sprintf(", or have an admin raise it: borgcfg quota state %s %s=%d", user, measures[m].name, amount)
}

// checkJobState is checkState for a new job.
func (c *Cell) checkJobState(key JobKey, spec *Spec, labels, annotations map[string]string) *borgpb.Refusal {
	var more StateUse
	tasks := int64(spec.Proto.Tasks)
	switch spec.Proto.Kind {
	case borgpb.JobKind_JOB_KIND_DAEMON:
		// Machines that join later raise it, and nobody is asked.
		tasks = int64(c.numMatching(spec))
	case borgpb.JobKind_JOB_KIND_CRON:
		tasks, more[measureCronJobs] = 0, 1
	}
	more.hold(false, tasks, spec.bytesOf()+weight.Map(labels)+weight.Map(annotations), measureTasks)
	if spec.volumes && spec.Proto.AllocSet == "" {
		if r := c.checkKept(key.User); r != nil {
			return r
		}
	}
	return c.checkState(key.User, spec.Proto.Priority, &more)
}

// checkJobGrowth is checkState for a job that gets so many tasks in all, and so many bytes
// of labels and annotations; spec: another one; nil: it keeps its own.
func (c *Cell) checkJobGrowth(j *Job, spec *Spec, tasks uint32, texts int64) *borgpb.Refusal {
	var more StateUse
	specs := c.specsWith(j, spec)
	if !stands(j.Kind()) {
		more[measureTasks] = int64(tasks) - int64(len(j.rows))
	} else if j.daemon != nil && spec != nil {
		more[measureTasks] = int64(c.numMatching(spec)) - int64(len(j.rows))
	}
	if next := specs[len(specs)-1]; next.volumes && next.Proto.AllocSet == "" && (more[measureTasks] > 0 || !j.latest().volumes) {
		if r := c.checkKept(j.key.User); r != nil {
			return r
		}
	}
	more[measureBytes] = texts - j.stateBytes()
	for _, s := range specs {
		more[measureBytes] += s.bytesOf()
	}
	return c.checkState(j.key.User, specs[len(specs)-1].Proto.Priority, &more)
}

// checkSetState is checkState for an alloc set, which has so many allocs and bytes then, and
// perhaps volumes; nil as s: it is a new one.
func (c *Cell) checkSetState(key JobKey, s *AllocSet, priority int32, allocs, bytes int64, volumes bool) *borgpb.Refusal {
	var more StateUse
	more.hold(false, allocs, bytes, measureAllocs)
	if s != nil {
		was := s.stateUse()
		more.add(&was, -1)
	}
	if volumes && more[measureAllocs] > 0 {
		if r := c.checkKept(key.User); r != nil {
			return r
		}
	}
	return c.checkState(key.User, priority, &more)
}

// checkSetStateBudget checks a change of the state budget of a user, or of the default.
func (c *Cell) checkSetStateBudget(o *borgpb.SetStateBudget) (commit, *borgpb.Refusal) {
	whose := "every user"
	if o.User != "" {
		if r := checkUserName(o.User); r != nil {
			return nil, r
		}
		whose = "user " + o.User
	}
	b := c.stateBudgets.byUser[o.User]
	var next StateUse
	if b != nil {
		next = b.amounts
	}
	words, r := next.setAmounts(o.Amounts)
	if r != nil {
		return nil, about(o.User, r)
	}
	if b == nil && len(c.stateBudgets.list) >= maxQuotas {
		return nil, about(o.User, limit("", "%d users have budgets of their own", maxQuotas))
	}
	return func(*borgpb.Result) {
		c.setStateBudget(o.User, next)
		c.emit(userEvent(borgpb.EventKind_EVENT_KIND_STATE_BUDGET, o.User, whose+" may hold "+strings.Join(words, ", "), c.now.reason))
	}, nil
}

// setAmounts sets the amounts that an op names, and returns them in words.
func (u *StateUse) setAmounts(amounts []*borgpb.StateAmount) (words []string, _ *borgpb.Refusal) {
	if len(amounts) == 0 || len(amounts) > numMeasures {
		return nil, invalid("amounts", "%d amounts; want 1 to %d", len(amounts), numMeasures)
	}
	var named [numMeasures + 1]bool
	for _, a := range amounts {
		m := a.GetMeasure()
		if m <= 0 || int(m) > numMeasures || named[m] {
			return nil, invalid("amounts.measure", "%d is no measure, or is named twice", m)
		}
		if a.Amount < 0 || a.Amount > measures[m].cell {
			return nil, invalid("amounts.amount", "%d %s are not in 0 to %d, the total of the cell", a.Amount, measures[m].what, measures[m].cell)
		}
		named[m], u[m] = true, a.Amount
		word := fmt.Sprintf("%d %s", a.Amount, measures[m].what)
		if a.Amount == 0 {
			word = measures[m].what + " as by default"
		}
		words = append(words, word)
	}
	return words, nil
}

// setStateBudget sets the budget of a user, or the default for user "". The cell forgets at
// once what is over a lower budget of a measure that forgets.
func (c *Cell) setStateBudget(user string, amounts StateUse) {
	b := c.stateBudgets.byUser[user]
	if b == nil {
		b = &stateBudget{user: user}
		c.stateBudgets.add(b)
	}
	if b.amounts = amounts; amounts.isZero() {
		c.stateBudgets.remove(b)
	}
	c.dirty(b)
	for dead := range c.graveyard.byUser {
		if user == "" || user == dead {
			c.graveyard.crowded = append(c.graveyard.crowded, dead)
		}
	}
	slices.Sort(c.graveyard.crowded)
	for _, asker := range slices.Sorted(maps.Keys(c.requests.of)) {
		if user == "" || user == asker {
			c.thinRequests(c.requests.of[asker], c.StateBudget(asker, measureRequests))
		}
	}
}

func (s *stateBudgets) add(b *stateBudget) {
	s.byUser[b.user] = b
	at, _ := slices.BinarySearchFunc(s.list, b.user, compareStateBudget)
	s.list = slices.Insert(s.list, at, b)
}

func (s *stateBudgets) remove(b *stateBudget) {
	delete(s.byUser, b.user)
	at, _ := slices.BinarySearchFunc(s.list, b.user, compareStateBudget)
	s.list = slices.Delete(s.list, at, at+1)
	b.gone = true
}

func compareStateBudget(b *stateBudget, user string) int { return strings.Compare(b.user, user) }

func (s *stateBudgets) check() error {
	for i, b := range s.list {
		if b.gone || s.byUser[b.user] != b || b.amounts.isZero() || i > 0 && s.list[i-1].user >= b.user {
			return fmt.Errorf("the state budget of %q is out of order", b.user)
		}
	}
	if len(s.byUser) != len(s.list) {
		return fmt.Errorf("%d users have state budgets, of which %d are known", len(s.list), len(s.byUser))
	}
	return nil
}

func (b *stateBudget) appendKey(to []byte) []byte {
	return append(append(to, kindStateBudget), b.user...)
}
func (b *stateBudget) exists() bool { return !b.gone }

func (b *stateBudget) appendValue(to []byte) []byte {
	e := encoder{append(to, recordLayout)}
	for _, m := range Measures {
		e.uint(uint64(b.amounts[m]))
	}
	return e.b
}

func (l *loader) stateBudget(user string, d *decoder) error {
	b := &stateBudget{user: user}
	for _, m := range Measures {
		b.amounts[m] = int64(d.upTo(uint64(measures[m].cell)))
	}
	if err := d.done(); err != nil {
		return err
	}
	if l.c.format < FormatStateBudgets || user != "" && !validName(user) || b.amounts.isZero() {
		return errOdd
	}
	l.c.stateBudgets.add(b)
	return nil
}

package reservation

import "fmt"

// Setting is how much is kept beyond what a task uses. The paper tried three
// and kept the middle one.
type Setting uint8

const (
	Medium Setting = iota
	Conservative
	Aggressive
	numSettings
)

var settingNames = [numSettings]string{"medium", "conservative", "aggressive"}

func (s Setting) String() string { return settingNames[s] }

// ParseSetting reads the name of a setting; empty is the default one.
func ParseSetting(name string) (Setting, error) {
	if name == "" {
		return Medium, nil
	}
	for s, known := range settingNames {
		if name == known {
			return Setting(s), nil
		}
	}
	return 0, fmt.Errorf("there is no reservation setting %q; settings: conservative, medium, aggressive", name)
}

// Config says how fast and how far a reservation falls. The paper gives the
// shape and no numbers but HoldNs.
type Config struct {
	// HoldNs is how long a new copy keeps its limit, whatever it uses.
	HoldNs int64
	// HalfLifeNs is the time in which what is held beyond the aim halves.
	HalfLifeNs int64
	// MarginPermille is what is kept beyond what is used, in thousandths of that.
	MarginPermille int64
}

// Config of the setting. They differ in the margin alone, so that they are
// ordered for every task at every moment.
func (s Setting) Config() Config {
	margin := [numSettings]int64{Medium: 175, Conservative: 250, Aggressive: 100}
	return Config{HoldNs: 300e9, HalfLifeNs: 600e9, MarginPermille: margin[s]}
}

// Validate says what is wrong with c.
func (c Config) Validate() error {
	switch {
	case c.HoldNs < 0:
		return fmt.Errorf("reservation: the limit is held for %d ns, want none or more", c.HoldNs)
	case c.HalfLifeNs <= 0:
		return fmt.Errorf("reservation: the half-life is %d ns, want more than none", c.HalfLifeNs)
	case c.MarginPermille < 0 || c.MarginPermille > 1000:
		return fmt.Errorf("reservation: the margin is %d thousandths, want 0 to 1,000", c.MarginPermille)
	}
	return nil
}

// Amounts are of the resources that are estimated. Ports, devices and disk that
// were granted are taken, used or not.
type Amounts struct {
	CPUMilli, MemBytes int64
}

// What moves by no more than this is not worth a word in the log.
const (
	leastCPUMilli = 10
	leastMemBytes = 4 << 20
)

// Differs tells whether a reservation has moved so far from the one in the log,
// by more than a twentieth and not by next to nothing, that it is to be logged.
func (a Amounts) Differs(logged Amounts) bool { return a.Rises(logged) || logged.risesBy(a, logged) }

// Rises tells whether it differs and one of both is higher.
func (a Amounts) Rises(logged Amounts) bool { return a.risesBy(logged, logged) }

// risesBy tells whether a is above b by more than what counts beside logged.
func (a Amounts) risesBy(b, logged Amounts) bool {
	return a.CPUMilli-b.CPUMilli > max(logged.CPUMilli/20, leastCPUMilli) || a.MemBytes-b.MemBytes > max(logged.MemBytes/20, leastMemBytes)
}

// Exceeds tells whether one of both is above what b has.
func (a Amounts) Exceeds(b Amounts) bool { return a.CPUMilli > b.CPUMilli || a.MemBytes > b.MemBytes }

// Task is the reservation of one copy of a task. All times are cell time.
type Task struct {
	reserved Amounts
	// startedNs is when the copy was placed, atNs when reserved was true.
	startedNs, atNs int64
}

// Begin is the reservation of a copy that was placed at nowNs: its limit.
func Begin(nowNs int64, limit Amounts) Task {
	return Task{reserved: limit, startedNs: nowNs, atNs: nowNs}
}

// BeginLate is the reservation of a copy that was placed some time before nowNs and
// has none in the log: of its hold, so much is over.
func BeginLate(nowNs, ageNs int64, limit Amounts, cfg Config) Task {
	return Task{reserved: limit, startedNs: nowNs - min(max(ageNs, 0), cfg.HoldNs), atNs: nowNs}
}

// Resume goes on from a reservation in the log and the time it was set. One that
// was never set has none, and its copy is new as far as anybody knows: Begin.
func Resume(setNs int64, reserved Amounts, cfg Config) Task {
	return Task{reserved: reserved, startedNs: setNs - cfg.HoldNs, atNs: setNs}
}

// Reserved is the estimate.
func (t *Task) Reserved() Amounts { return t.reserved }

// Skip says that nobody knows what the copy used up to nowNs: that time does not
// count as one in which it used little.
func (t *Task) Skip(nowNs int64) { t.atNs = max(nowNs, t.atNs) }

// Use takes in what the copy used up to nowNs. Between two calls should be
// seconds: time below one in 65,536 of the half-life is lost. Fixed is for tasks
// whose owner has switched estimation off: they keep their limit.
func (t *Task) Use(nowNs int64, limit, used Amounts, fixed bool, cfg Config) {
	elapsedNs := max(nowNs-t.atNs, 0)
	t.atNs = max(nowNs, t.atNs)
	if fixed {
		t.reserved = limit
		return
	}
	held := t.atNs-t.startedNs < cfg.HoldNs
	t.reserved.CPUMilli = cfg.next(t.reserved.CPUMilli, limit.CPUMilli, used.CPUMilli, elapsedNs, held)
	t.reserved.MemBytes = cfg.next(t.reserved.MemBytes, limit.MemBytes, used.MemBytes, elapsedNs, held)
}

// next is the reservation of one resource after so much time. It grows with each
// of reserved, limit, used and the margin, so what is larger stays larger.
func (c Config) next(reserved, limit, used, elapsedNs int64, held bool) int64 {
	if held {
		return max(limit, used)
	}
	aim := c.aim(limit, used)
	if reserved <= aim {
		return aim
	}
	// A limit that was lowered does not decay, it holds.
	reserved = min(reserved, max(limit, aim))
	return aim + left(reserved-aim, elapsedNs, c.HalfLifeNs)
}

// aim is what is used plus the margin, but not beyond the limit for the margin's
// sake.
func (c Config) aim(limit, used int64) int64 {
	used = max(used, 0)
	return max(used, min(used+mulDiv(used, c.MarginPermille, 1000), limit))
}

package main

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// amountFlags are the flags of an amount each.
var amountFlags = []string{"cpu", "mem", "disk", "disk-rate"}

// addAmount puts one amount into a vector.
func addAmount(r *borgpb.Resources, what, text string) error {
	var err error
	switch what {
	case "cpu":
		cores, bad := strconv.ParseFloat(text, 64)
		if bad != nil || !(cores >= 0 && cores < 1e15) {
			return cli.Errorf(cli.Usage, "%q is not a number of cores", text).Hint("such as 12 or 0.5")
		}
		r.CpuMilli = int64(math.Round(cores * 1000))
	case "mem":
		r.MemBytes, err = cli.ParseBytes(text)
	case "disk":
		r.DiskBytes, err = cli.ParseBytes(text)
	case "disk-rate":
		r.DiskBytesPerS, err = cli.ParseBytes(text)
	default:
		n, bad := strconv.ParseInt(text, 10, 64)
		if bad != nil {
			return cli.Errorf(cli.Usage, "%s=%s: %q is not a number of devices", what, text, text).Hint("known amounts: cpu, mem, disk, disk-rate, and devices by their name")
		}
		if n == 0 {
			delete(r.Devices, what)
			return nil
		}
		if r.Devices == nil {
			r.Devices = make(map[string]int64)
		}
		r.Devices[what] = n
	}
	if err != nil {
		return cli.Errorf(cli.Usage, "%s: %v", what, err)
	}
	return nil
}

// amountName is how a change names an amount: a device after "device/".
func amountName(what string) string {
	if slices.Contains(amountFlags, what) {
		return what
	}
	return "device/" + what
}

// quotaSet changes what it names of a quota, and shows it when it names nothing.
func quotaSet(s *session) error {
	user := s.args[0]
	band, err := readBand(s.args[1])
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(append([]string{"device", "for"}, amountFlags...), s.flag.IsSet) {
		if err := s.quotas(user); err != nil {
			return err
		}
		s.progress("nothing was changed; to grant some: borgcfg quota set %s %s --cpu CORES --mem BYTES; to take it back: borgcfg quota delete %s %s", user, s.args[1], user, s.args[1])
		return nil
	}
	h, err := s.holder(user)
	if err != nil {
		return err
	}
	o := &borgpb.SetQuota{User: user, Band: band, Limit: &borgpb.Resources{}}
	if err := s.readQuota(o); err != nil {
		return err
	}
	if err := s.mutate(&borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: o}}); err != nil {
		return err
	}
	// The cell put what was named into what it had.
	now, err := s.quotasOf(user)
	if err != nil {
		return err
	}
	limit, until := &borgpb.Resources{}, ""
	for _, q := range now.Quotas {
		if q.Band != band || q.SetWallNs == 0 {
			continue
		}
		if limit = q.Limit; q.ExpiresWallNs != 0 {
			until = ", until " + time.Unix(0, q.ExpiresWallNs).Local().Format(time.DateTime)
		}
	}
	s.say("user %s: may have %s of %s%s", user, amountsText(limit), s.args[1], until)
	s.stranger(h)
	return nil
}

func (s *session) quotasOf(user string) (*borgrpc.ListQuotasResponse, error) {
	m, err := s.master()
	if err != nil {
		return nil, err
	}
	return m.ListQuotas(s.ctx, user)
}

// readQuota puts what the flags say into a change of a quota: of that alone.
func (s *session) readQuota(o *borgpb.SetQuota) error {
	for _, what := range amountFlags {
		if s.flag.IsSet(what) {
			if err := addAmount(o.Limit, what, s.flag.String(what)); err != nil {
				return err
			}
			o.Only = append(o.Only, what)
		}
	}
	err := eachPair(s, "device", func(name, n string) error {
		o.Only = append(o.Only, amountName(name))
		return addAmount(o.Limit, name, n)
	})
	if err != nil {
		return err
	}
	if s.flag.IsSet("for") {
		o.Only = append(o.Only, "expires")
	}
	switch d := s.flag.Duration("for"); {
	case d < 0:
		return cli.Errorf(cli.Usage, "--for %v is no time to come", d).Hint("such as --for 90d; 0: it stays until it is taken back")
	case d > 0:
		o.ExpiresWallNs = time.Now().Add(d).UnixNano()
	}
	return nil
}

// quotaBounds changes what it names of the bounds of a user's tasks, and shows them when it
// names nothing.
func quotaBounds(s *session) error {
	changes := slices.ContainsFunc([]string{"min", "default", "max", "delete"}, s.flag.IsSet)
	if len(s.args) == 0 && changes {
		return cli.Errorf(cli.Usage, "no user is named").Hint("such as borgcfg quota bounds alice --max cpu=2")
	}
	user := ""
	if len(s.args) > 0 {
		if err := checkUser(s.args[0]); err != nil {
			return err
		}
		user = s.args[0]
	} else if own, err := s.user(); err != nil {
		return err
	} else {
		user = own
	}
	h, err := s.holder(user)
	if err != nil {
		return err
	}
	if !changes {
		return s.showBounds(h)
	}
	o := &borgpb.SetTaskLimits{User: user, Min: &borgpb.Resources{}, Default: &borgpb.Resources{}, Max: &borgpb.Resources{}}
	if s.flag.Bool("delete") {
		if slices.ContainsFunc([]string{"min", "default", "max"}, s.flag.IsSet) {
			return cli.Errorf(cli.Usage, "--delete leaves no bounds, and others are named").Hint("one or the other; 0 of an amount deletes that bound alone: --max cpu=0")
		}
		return s.change(&borgpb.Op{Op: &borgpb.Op_SetTaskLimits{SetTaskLimits: o}}, "a task of user %s: no bounds any more", user)
	}
	for _, part := range []struct {
		flag string
		r    *borgpb.Resources
	}{{"min", o.Min}, {"default", o.Default}, {"max", o.Max}} {
		err := eachPair(s, part.flag, func(what, n string) error {
			o.Only = append(o.Only, part.flag+"/"+amountName(what))
			return addAmount(part.r, what, n)
		})
		if err != nil {
			return err
		}
	}
	if err := s.mutate(&borgpb.Op{Op: &borgpb.Op_SetTaskLimits{SetTaskLimits: o}}); err != nil {
		return err
	}
	// The cell put what was named into what it had.
	now, err := s.quotasOf(user)
	if err != nil {
		return err
	}
	text := "no bounds"
	for _, b := range now.Bounds {
		text = boundsText(b.Min, b.Default, b.Max)
	}
	s.say("a task of user %s: %s", user, text)
	s.stranger(h)
	s.tellIdle(o)
	return nil
}

// tellIdle warns of bounds that are of nothing in the cell, or that no task can keep.
func (s *session) tellIdle(o *borgpb.SetTaskLimits) {
	if n := o.Max.GetMemBytes(); n > 0 && n < leastMemBytes {
		s.progress("no program runs in %s of memory: every job of the user is refused", bytesText(n))
	}
	resp, err := s.client.ListMachines(s.ctx, &borgrpc.ListMachinesRequest{})
	if err != nil || len(resp.Machines) == 0 {
		return // The bounds stand; this is advice.
	}
	has := make(map[string]bool)
	for _, m := range resp.Machines {
		for name := range m.GetSpec().GetCapacity().GetDevices() {
			has[name] = true
		}
	}
	named := make(map[string]bool)
	for _, r := range []*borgpb.Resources{o.Min, o.Default, o.Max} {
		for name := range r.GetDevices() {
			named[name] = true
		}
		for name := range r.GetDeviceMilli() {
			named[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if !has[name] {
			s.progress("no machine has a device %q; what is not cpu, mem, disk or disk-rate is the name of a device", name)
		}
	}
}

// leastMemBytes is less memory than any program needs.
const leastMemBytes = 1 << 20

// showBounds says how the tasks of a user are bounded.
func (s *session) showBounds(h *holder) error {
	switch {
	case s.out.machine():
		return list(s.out, h.has.Bounds)
	case len(h.has.Bounds) == 0:
		s.say("a task of user %s: no bounds", h.user)
	default:
		for _, b := range h.has.Bounds {
			s.say("a task of user %s: %s", h.user, boundsText(b.Min, b.Default, b.Max))
		}
		s.progress("to take them away: borgcfg quota bounds %s --delete", h.user)
	}
	s.stranger(h)
	return nil
}

// boundsText says what a task may ask for: "at least 16MiB memory, at most 2 cpu".
func boundsText(least, otherwise, most *borgpb.Resources) string {
	var all []string
	for _, part := range []struct {
		words string
		r     *borgpb.Resources
	}{{"at least ", least}, {"by default ", otherwise}, {"at most ", most}} {
		if text := amountsText(part.r); text != noAmount {
			all = append(all, part.words+text)
		}
	}
	if len(all) == 0 {
		return "no bounds"
	}
	return strings.Join(all, ", ")
}

// holder is a user as the cell had them before a change.
type holder struct {
	user string
	has  *borgrpc.ListQuotasResponse
	// Whether the cell has anything of the user.
	known bool
	// Of one that it has nothing of: a user by a name like that; empty if there is none.
	near string
}

// holder asks what the cell has of a user.
func (s *session) holder(user string) (*holder, error) {
	m, err := s.master()
	if err != nil {
		return nil, err
	}
	has, err := m.ListQuotas(s.ctx, user)
	if err != nil {
		return nil, err
	}
	h := &holder{user: user, has: has, known: !holdsNothing(has) || user == s.source.Name().User()}
	if h.known {
		return h, nil
	}
	users, err := m.ListUsers(s.ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, u := range users {
		h.known = h.known || u.Name == user
		names = append(names, u.Name)
	}
	if h.known = h.known || s.invited(m, user); h.known {
		return h, nil
	}
	jobs, err := m.ListJobs(s.ctx, &borgrpc.ListJobsRequest{Dead: true})
	if err != nil {
		return nil, err
	}
	for _, j := range jobs.Jobs {
		names = append(names, j.GetMeta().GetUser())
	}
	sets, err := m.ListAllocs(s.ctx, &borgrpc.ListAllocsRequest{})
	if err != nil {
		return nil, err
	}
	for _, a := range sets.AllocSets {
		names = append(names, a.GetMeta().GetUser())
	}
	h.near = cli.Nearest(user, names)
	return h, nil
}

// invited reports whether the audit has an invitation of this user: the cell does not keep
// which users have logged in.
func (s *session) invited(m *client.Client, user string) bool {
	found := false
	err := m.Audit(s.ctx, &borgrpc.AuditRequest{Object: "user/" + user, Verb: "add-token", Last: 1}, func(resp *borgrpc.AuditResponse) error {
		for _, r := range resp.Records {
			found = found || r.Refusal == nil && r.Object == "user/"+user
		}
		return nil
	})
	return err == nil && found
}

// changeOf makes a mutation about a user, and says aloud if the cell has nothing else of
// them. That is allowed: people may be given something before they come.
func (s *session) changeOf(h *holder, op *borgpb.Op, format string, args ...any) error {
	if err := s.change(op, format, args...); err != nil {
		return err
	}
	s.stranger(h)
	return nil
}

func (s *session) stranger(h *holder) {
	switch {
	case h.known:
	case h.near != "":
		s.progress("the cell has nothing else of user %s; did you mean %s?", h.user, h.near)
	default:
		s.progress("the cell has nothing else of user %s, and keeps this for whoever logs in under that name; is it right? An admin lets one in: borgcfg user add %s", h.user, h.user)
	}
}

package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"
	"google.golang.org/protobuf/proto"

	borgcell "borg/borgmaster/cell"
	"borg/borgmaster/client"
	"borg/cfg"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func quotaCommands(con *console) *ucli.Command {
	amounts := func() []ucli.Flag {
		return []ucli.Flag{
			&ucli.StringFlag{Name: "cpu", Usage: "`CORES`, such as 12 or 0.5"},
			&ucli.StringFlag{Name: "mem", Usage: "`BYTES` of memory, such as 20TiB"},
			&ucli.StringFlag{Name: "disk", Usage: "`BYTES` of disk"},
			&ucli.StringFlag{Name: "disk-rate", Usage: "`BYTES` a second, to and from disk"},
			&ucli.StringSliceFlag{Name: "device", Usage: "`NAME=COUNT` of devices; may be repeated"},
		}
	}
	return group("quota", "what users may ask for at one time",
		command(con, "list", "list the quotas, what is used of them, and how far the cell is sold", "", 0, 0, quotaList, outputFlag()),
		command(con, "show", "show the quotas of a user, and the bounds of his tasks", "[USER]", 0, 1, quotaShow, outputFlag()),
		command(con, "set", "grant a user a quota of a band; what is not named stays as it was, without a flag it is shown", "USER BAND", 2, 2, quotaSet, append(amounts(), reasonFlag(),
			&ucli.DurationFlag{Name: "for", DefaultText: "as it was", Usage: "it ends after `DURATION`, such as 90d: then nothing new is admitted, and what runs goes on; 0: not by itself"})...),
		command(con, "delete", "take a quota back; what runs goes on", "USER BAND", 2, 2, quotaDelete, reasonFlag()),
		command(con, "policy", "say whether quotas are enforced, and how far bands may be sold", "", 0, 0, quotaPolicy, reasonFlag(),
			&ucli.StringFlag{Name: "enforce", Usage: "`on`: refuse what passes the quota of its user; off: admit everything"},
			&ucli.StringSliceFlag{Name: "oversell", Usage: "`BAND=PERMILLE` of the cell that may be granted; 0: as at first; may be repeated"}),
		command(con, "bounds", "bound what a task of a user may ask for; what is not named stays as it was, without a flag they are shown", "[USER]", 0, 1, quotaBounds, reasonFlag(), outputFlag(),
			&ucli.StringSliceFlag{Name: "min", Usage: "`WHAT=AMOUNT` at least, such as cpu=0.1 or mem=64MiB; may be repeated"},
			&ucli.StringSliceFlag{Name: "default", Usage: "`WHAT=AMOUNT` for who asks for none"},
			&ucli.StringSliceFlag{Name: "max", Usage: "`WHAT=AMOUNT` at most; 0 of anything: no such bound"},
			&ucli.BoolFlag{DisableDefaultText: true, Name: "delete", Usage: "no bounds any more"}),
		command(con, "state", "set how much of the cell's state a user may hold, or with --default each user; 0: the default; without an amount it is shown",
			"[USER] WHAT=AMOUNT...", 1, 1+len(borgcell.Measures), quotaState, reasonFlag(), outputFlag(),
			&ucli.BoolFlag{Name: "default", Usage: "for all users who have no budget of their own"}),
	)
}

var bandNames = map[string]borgpb.Band{
	"free": borgpb.Band_BAND_FREE, "batch": borgpb.Band_BAND_BATCH, "mid": borgpb.Band_BAND_MID,
	"production": borgpb.Band_BAND_PRODUCTION, "monitoring": borgpb.Band_BAND_MONITORING,
}

func readBand(name string) (borgpb.Band, error) {
	if b, ok := bandNames[name]; ok {
		return b, nil
	}
	return 0, cli.Errorf(cli.Usage, "there is no band %q", name).Hint("bands: %s", strings.Join(slices.Sorted(maps.Keys(bandNames)), ", "))
}

// eachPair takes what a flag says of several names, in their order.
func eachPair(s *session, flag string, take func(name, value string) error) error {
	list, err := pairs("--"+flag, s.flag.StringSlice(flag))
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if err := take(name, list[name]); err != nil {
			return err
		}
	}
	return nil
}

func quotaDelete(s *session) error {
	band, err := readBand(s.args[1])
	if err != nil {
		return err
	}
	return s.change(&borgpb.Op{Op: &borgpb.Op_DeleteQuota{DeleteQuota: &borgpb.DeleteQuota{User: s.args[0], Band: band}}}, "user %s: no quota of %s any more", s.args[0], s.args[1])
}

func quotaPolicy(s *session) error {
	o := &borgpb.SetQuotaPolicy{}
	var said []string
	switch text := s.flag.String("enforce"); text {
	case "":
	case "on", "off":
		o.Enforce = new(text == "on")
		said = append(said, map[bool]string{true: "enforced", false: "not enforced"}[text == "on"])
	default:
		return cli.Errorf(cli.Usage, "--enforce %q is neither on nor off", text)
	}
	err := eachPair(s, "oversell", func(name, n string) error {
		band, err := readBand(name)
		if err != nil {
			return err
		}
		milli, bad := strconv.ParseUint(n, 10, 32)
		if bad != nil {
			return cli.Errorf(cli.Usage, "%q is not a number of thousandths", n).Hint("such as --oversell batch=3000 for three times the cell")
		}
		o.Oversell = append(o.Oversell, &borgpb.Oversell{Band: band, Milli: uint32(milli)})
		if milli == 0 {
			said = append(said, name+" as at first")
			return nil
		}
		said = append(said, fmt.Sprintf("%s up to %d‰ of the cell", name, milli))
		return nil
	})
	if err != nil {
		return err
	}
	if len(said) == 0 {
		return s.tellPolicy()
	}
	return s.change(&borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: o}}, "quotas: %s", strings.Join(said, ", "))
}

// amountsText says a vector: "12 cpu, 20 TiB memory".
func amountsText(r *borgpb.Resources) string {
	var all []string
	for _, q := range []struct {
		n    int64
		text func(int64) string
		what string
	}{
		{r.GetCpuMilli(), cpuText, " cpu"}, {r.GetMemBytes(), bytesText, " memory"},
		{r.GetDiskBytes(), bytesText, " disk"}, {r.GetDiskBytesPerS(), bytesText, "/s disk"},
	} {
		if q.n != 0 {
			all = append(all, q.text(q.n)+q.what)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.GetDevices())) {
		all = append(all, fmt.Sprintf("%d %s", r.Devices[name], name))
	}
	for _, name := range slices.Sorted(maps.Keys(r.GetDeviceMilli())) {
		all = append(all, cpuText(r.DeviceMilli[name])+" "+name)
	}
	if len(all) == 0 {
		return noAmount
	}
	return strings.Join(all, ", ")
}

// noAmount is how an empty vector is said.
const noAmount = "nothing"

func quotaList(s *session) error { return s.quotas("") }

func quotaShow(s *session) error {
	if len(s.args) > 0 {
		if err := checkUser(s.args[0]); err != nil {
			return err
		}
		return s.quotas(s.args[0])
	}
	user, err := s.user()
	if err != nil {
		return err
	}
	return s.quotas(user)
}

func (s *session) quotas(user string) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.ListQuotas(s.ctx, user)
	if err != nil {
		return err
	}
	switch {
	case s.out.format == "name":
		var names []string
		for _, q := range resp.Quotas {
			names = append(names, q.User+"/"+word(q.Band))
		}
		return s.out.names(names)
	case s.out.machine():
		return list(s.out, []*borgrpc.ListQuotasResponse{resp})
	}
	if resp.Enforced {
		s.progress("quotas are enforced: what passes the quota of its user is refused; priority 0 needs none")
	} else {
		s.progress("quotas are not enforced, budgets of the state are; an admin enforces them: borgcfg quota policy --enforce on")
	}
	var t table
	t.head("USER", "BAND", "GRANTED", "USED", "UNTIL", "BY", "REASON")
	for _, q := range resp.Quotas {
		until := "-"
		if q.ExpiresWallNs != 0 {
			until = time.Unix(0, q.ExpiresWallNs).Local().Format(time.DateTime)
		}
		if q.Expired {
			until = "ended " + until
		}
		t.add(q.User, word(q.Band), amountsText(q.Limit), amountsText(q.Used), until, q.By, q.Reason)
	}
	if err := t.write(s.out, ""); err != nil {
		return err
	}
	for _, b := range resp.Bounds {
		s.progress("a task of user %s asks for: %s", b.User, boundsText(b.Min, b.Default, b.Max))
	}
	if err := s.shares(user, resp); err != nil {
		return err
	}
	if user != "" && holdsNothing(resp) {
		shown := ", and shows what any user may have"
		if len(resp.Shares) == 0 {
			shown = " that you may see"
		}
		s.progress("the cell has nothing of user %s%s; is the name right?", user, shown)
		if h, err := s.holder(user); err == nil && h.near != "" {
			s.progress("did you mean %s?", h.near)
		}
	}
	if user == "" {
		for _, b := range resp.Sold {
			s.progress("%s: %s granted in all; at most %s times the cell can be, which has %s", word(b.Band), amountsText(b.Sold), cpuText(int64(b.OversellMilli)), amountsText(b.Cell))
		}
	}
	return nil
}

// tellPolicy says what is set.
func (s *session) tellPolicy() error {
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.ListQuotas(s.ctx, "")
	if err != nil {
		return err
	}
	s.say("quotas are %s", map[bool]string{true: "enforced", false: "not enforced"}[resp.Enforced])
	for _, b := range resp.Sold {
		s.say("%s up to %d‰ of the cell", word(b.Band), b.OversellMilli)
	}
	s.progress("change it: borgcfg quota policy --enforce on|off, --oversell BAND=PERMILLE")
	return nil
}

// holdsNothing reports whether the answer about one user says what it would of any name.
func holdsNothing(resp *borgrpc.ListQuotasResponse) bool {
	for _, share := range resp.Shares {
		if slices.ContainsFunc(share.Held, func(h *borgrpc.StateHeld) bool { return h.Used != 0 }) {
			return false
		}
	}
	return len(resp.Quotas)+len(resp.Bounds) == 0
}

// fillResources adds to what files ask for what the cell gives who asks for none, so
// that it is no difference, and returns what it was, by key.
func (s *session) fillResources(m *client.Client, objects []declared) (map[string]string, error) {
	bounds := make(map[string]*borgpb.Resources)
	filled := make(map[string]string)
	var lacks cfg.Faults
	for _, d := range objects {
		otherwise, known := bounds[d.User]
		if !known {
			resp, err := m.ListQuotas(s.ctx, d.User)
			var notAllowed *client.NotAllowedError
			switch {
			case err == nil:
			case errors.As(err, &notAllowed) && !notAllowed.Revoked:
				// Then what the cell fills in is seen as a difference.
				resp = &borgrpc.ListQuotasResponse{}
			default:
				return nil, err
			}
			for _, b := range resp.Bounds {
				otherwise = b.Default
			}
			bounds[d.User] = otherwise
		}
		asks := d.resources()
		more := borgcell.Defaults(*asks, otherwise)
		if !proto.Equal(more, &borgpb.Resources{}) {
			if *asks == nil {
				*asks = &borgpb.Resources{}
			}
			proto.Merge(*asks, more)
			filled[d.Key()] = amountsText(more)
		}
		if fault := d.Lacks(); fault != nil {
			lacks = append(lacks, fault)
		}
	}
	if len(lacks) > 0 {
		return nil, lacks
	}
	return filled, nil
}

// resources is where an object says what each of its tasks or allocs asks for.
func (d declared) resources() **borgpb.Resources {
	if d.Kind == cfg.KindAllocSet {
		return &d.AllocSet.Resources
	}
	if d.Job.Task == nil {
		d.Job.Task = &borgpb.TaskSpec{}
	}
	return &d.Job.Task.Resources
}

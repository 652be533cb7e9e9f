package main

import (
	"fmt"
	"strconv"
	"strings"

	borgcell "borg/borgmaster/cell"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// quotaState changes how much of the replicated state a user may hold.
func quotaState(s *session) error {
	o, whose := &borgpb.SetStateBudget{}, "every user"
	args := s.args
	if !s.flag.Bool("default") {
		o.User, whose, args = args[0], "user "+args[0], args[1:]
	}
	if o.User != "" && !strings.Contains(o.User, "=") {
		if err := checkUser(o.User); err != nil {
			return err
		}
		if len(args) == 0 {
			return s.quotas(o.User)
		}
	}
	if len(args) == 0 || strings.Contains(o.User, "=") {
		return cli.Errorf(cli.Usage, "no user or no amount").Hint("such as borgcfg quota state alice tasks=300000, or borgcfg quota state --default tasks=100000")
	}
	var said []string
	for _, arg := range args {
		name, text, found := strings.Cut(arg, "=")
		m := borgcell.MeasureNamed(name)
		if !found || m == 0 {
			return cli.Errorf(cli.Usage, "%q is not WHAT=AMOUNT", arg).Hint("WHAT is one of %s", strings.Join(namesOfMeasures(), ", "))
		}
		n, err := parseAmount(m, text)
		if err != nil {
			return cli.Errorf(cli.Usage, "%s: %v", name, err)
		}
		o.Amounts = append(o.Amounts, &borgpb.StateAmount{Measure: m, Amount: n})
		said = append(said, budgetText(m, n, o.User))
	}
	h := &holder{known: true}
	if o.User != "" {
		var err error
		if h, err = s.holder(o.User); err != nil {
			return err
		}
	}
	return s.changeOf(h, &borgpb.Op{Op: &borgpb.Op_SetStateBudget{SetStateBudget: o}}, "%s may hold %s", whose, strings.Join(said, ", "))
}

// budgetText says how much of a measure a user, or by default each, may hold from now on.
func budgetText(m borgcell.Measure, n int64, user string) string {
	switch name := borgcell.MeasureName(m); {
	case n != 0:
		return name + " " + amountText(m, n)
	case user != "":
		return name + " as every user by default"
	default:
		return name + " as at first"
	}
}

func namesOfMeasures() (names []string) {
	for _, m := range borgcell.Measures {
		names = append(names, borgcell.MeasureName(m))
	}
	return names
}

// inBytes reports whether a measure is of bytes.
func inBytes(m borgcell.Measure) bool { return strings.HasSuffix(borgcell.MeasureName(m), "bytes") }

func parseAmount(m borgcell.Measure, text string) (int64, error) {
	if inBytes(m) {
		return cli.ParseBytes(text)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	return n, nil
}

func amountText(m borgcell.Measure, n int64) string {
	if inBytes(m) {
		return bytesText(n)
	}
	return strconv.FormatInt(n, 10)
}

// shares shows what users hold of the replicated state, and the cell.
func (s *session) shares(user string, resp *borgrpc.ListQuotasResponse) error {
	var t table
	t.head("USER", "STATE", "USED", "ALLOWED")
	for _, share := range resp.Shares {
		for _, h := range share.Held {
			t.add(share.User, borgcell.MeasureName(h.Measure), amountText(h.Measure, h.Used), amountText(h.Measure, h.Allowed))
		}
	}
	if user == "" {
		for _, h := range resp.Cell.GetHeld() {
			allowed := amountText(h.Measure, h.Allowed)
			if h.Reserved > 0 {
				allowed += ", of it " + amountText(h.Measure, h.Reserved) + " for production and admins"
			}
			t.add("(cell)", borgcell.MeasureName(h.Measure), amountText(h.Measure, h.Used), allowed)
		}
	}
	return t.write(s.out, "")
}

package main

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"borg/cli"
	"borg/identity"
)

// TestTheCellWasOff: masters, borglets and people were away until what they had expired,
// in the second case for longer than the authority lives. Each says what to type when it
// is started; that is on the page too, and is all that it takes: nothing of the cell is
// lost, and tasks that went on meanwhile are the same processes.
//
// Nobody waits for a week: the files are those that would lie there by then.
func TestTheCellWasOff(t *testing.T) {
	alongside(t)
	for _, test := range []struct {
		name string
		// How old the authority is.
		authority time.Duration
		ended     bool
	}{
		{"for longer than certificates live", 30 * 24 * time.Hour, false},
		{"for longer than the authority lives", (10*365 + 1) * 24 * time.Hour, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			alongside(t)
			c := newExpired(t)
			before := c.run(t, "web", sleepers(2))
			c.off(t)
			c.age(t, test.authority)
			c.refused(t, test.ended)
			if test.ended {
				c.renewAuthority(t)
			}
			c.on(t)
			c.stillSame(t, before, "web")
			c.run(t, "later", sleepers(2))
			c.tasksAreBelieved(t)
			waitFor(t, "the cell finds nothing wrong with itself", func() string {
				if out, code := c.says(t, "borgcfg", "--cell", c.cellFile(), "doctor"); code != cli.OK && code != cli.Warnings || strings.Contains(out, "ertificate") || strings.Contains(out, "authority") {
					return out
				}
				return ""
			})
		})
	}
}

// expired is a cell with the processes that it was started with.
type expired struct {
	*Cell
	specs map[string]processSpec
	page  string
}

func newExpired(t *testing.T) *expired {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "identity.md"))
	if err != nil {
		t.Fatal(err)
	}
	c := &expired{Cell: newChaosCell(t, 3, 2), specs: map[string]processSpec{}, page: string(page)}
	c.alter = func(spec *processSpec) { c.specs[spec.Name] = *spec }
	c.startAll(t)
	return c
}

// off ends all masters and borglets; tasks go on.
func (c *expired) off(t *testing.T) {
	t.Helper()
	for name := range c.specs {
		if err := c.Kill(name); err != nil {
			t.Fatal(err)
		}
	}
}

// age puts what would lie there by now in the place of all that was issued.
func (c *expired) age(t *testing.T, of time.Duration) {
	t.Helper()
	began := time.Now().Add(-of)
	old, err := identity.NewAuthority(c.Name, began, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	data, err := old.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= c.Masters; i++ {
		if err := identity.WriteSecret(filepath.Join(c.masterDir(i), "authority.pem"), data); err != nil {
			t.Fatal(err)
		}
	}
	had := func(path string, role identity.Role, id string) {
		credential, err := old.Certify(identity.Name{Cell: c.Name, Role: role, ID: id}, began.Add(time.Hour), identity.LifeOf(role))
		if err == nil {
			err = identity.WriteCredential(path, credential)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for k := 1; k <= c.Machines; k++ {
		had(filepath.Join(c.borgletDir(k), "identity.pem"), identity.Borglet, c.machineName(k))
	}
	had(c.identityFile(), identity.User, c.user)
}

// refused starts everybody as it was: who cannot work says why, and what to type.
func (c *expired) refused(t *testing.T, ended bool) {
	t.Helper()
	says := func(program string, args []string, want ...string) {
		t.Helper()
		out, code := c.says(t, program, args...)
		if missing := slices.DeleteFunc(want, func(w string) bool { return strings.Contains(out, w) }); code != cli.NotAllowed || len(missing) > 0 {
			t.Errorf("%s %s: exit code %d, without %q:\n%s", program, args[0], code, missing, out)
		}
	}
	for k := 1; k <= c.Machines; k++ {
		says("borglet", c.specs[c.machineName(k)].Args, "expired at", "borgcfg machine invite "+c.machineName(k), "--join TOKEN")
	}
	says("borgcfg", []string{"--cell", c.cellFile(), "whoami"}, "expired at", "borgcfg login")
	if !ended {
		return
	}
	for i := 1; i <= c.Masters; i++ {
		says("borgmaster", c.specs[c.masterName(i)].Args, "the authority of cell "+c.Name+" ended at", "borgmaster authority renew --dir "+c.masterDir(i), "docs/identity.md")
	}
	says("borgmaster", []string{"login", "--dir", c.masterDir(1), "--out", c.dir}, "ended at", "borgmaster authority renew --dir")
}

// types runs a command that docs/identity.md has, up to the first word that is a place.
func (c *expired) types(t *testing.T, words string, rest ...string) string {
	t.Helper()
	if !strings.Contains(c.page, words) {
		t.Errorf("docs/identity.md does not say %q", words)
	}
	all := append(strings.Fields(words), rest...)
	if all[0] == "borgcfg" {
		all = slices.Insert(all, 1, "--cell", c.cellFile())
	}
	return c.must(t, all[0], all[1:]...)
}

func (c *expired) renewAuthority(t *testing.T) {
	t.Helper()
	out := c.types(t, "borgmaster authority renew --dir", c.masterDir(2))
	data, err := os.ReadFile(filepath.Join(c.masterDir(2), "authority.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{1, 3} {
		if want := fmt.Sprintf("replica %d at %s", i, c.masterAddr(i)); !strings.Contains(out, want) {
			t.Errorf("authority renew does not name %s:\n%s", want, out)
		}
		if err := os.WriteFile(filepath.Join(c.masterDir(i), "authority.pem"), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// It is no way to make strangers of those who are none.
	if out, code := c.says(t, "borgmaster", "authority", "renew", "--dir", c.masterDir(1)); code != cli.NotAllowed || !strings.Contains(out, "borgmaster authority replace") {
		t.Errorf("an authority that lives is renewed: exit code %d: %s", code, out)
	}
}

// on starts everything again, with the commands of the page.
func (c *expired) on(t *testing.T) {
	t.Helper()
	start := func(name, listen string, more ...string) {
		t.Helper()
		spec := c.specs[name]
		spec.Args = append(slices.Clone(spec.Args), more...)
		if err := c.startAndServe(t.Context(), spec, listen); err != nil {
			t.Fatal(err)
		}
	}
	for i := 1; i <= c.Masters; i++ {
		start(c.masterName(i), c.masterAddr(i))
	}
	c.types(t, "borgmaster login --dir", c.masterDir(1), "--out", c.dir)
	c.asksAnew(t)
	if _, err := c.electedNow(shortly(t)); err != nil {
		t.Fatal(err)
	}
	for k := 1; k <= c.Machines; k++ {
		// What it says beside the token goes to people.
		said := strings.Fields(c.types(t, "borgcfg machine invite", c.machineName(k)))
		at := slices.IndexFunc(said, identity.IsToken)
		if at < 0 {
			t.Fatalf("no token in %q", said)
		}
		start(c.machineName(k), c.borgletAddr(k), "--join", said[at])
	}
	if err := until(shortly(t), "the cell works again", c.ready); err != nil {
		t.Fatal(err)
	}
}

// asksAnew has the test itself ask with a certificate of the present authority.
func (c *expired) asksAnew(t *testing.T) {
	t.Helper()
	c.endRenewal()
	if err := c.certify(); err != nil {
		t.Fatal(err)
	}
	if err := c.redial(); err != nil {
		t.Fatal(err)
	}
}

// tasksAreBelieved waits until each task has a certificate that the cell believes now.
func (c *expired) tasksAreBelieved(t *testing.T) {
	t.Helper()
	trust := c.source.Current().Trust
	for k := 1; k <= c.Machines; k++ {
		waitFor(t, "tasks have certificates that are believed", func() string {
			found, _ := filepath.Glob(filepath.Join(c.papersOf(k), "*", "current", "cert.pem"))
			if len(found) == 0 {
				return "there are none on " + c.machineName(k)
			}
			for _, path := range found {
				text, err := os.ReadFile(path)
				block, _ := pem.Decode(text)
				if err != nil || block == nil {
					return fmt.Sprintf("%s: %v", path, err)
				}
				leaf, err := x509.ParseCertificate(block.Bytes)
				if err != nil {
					return err.Error()
				}
				if _, err := trust.Verify([]*x509.Certificate{leaf}, identity.ToCall, time.Now()); err != nil {
					return err.Error()
				}
			}
			return ""
		})
	}
}

// TestAMasterMissedARotation: a master that was off for longer than its own key is believed
// after a replacement is a stranger to the others, and they go on without it. With their
// authority.pem, as docs/identity.md says, it is one of them again.
func TestAMasterMissedARotation(t *testing.T) {
	alongside(t)
	c := &expired{Cell: newChaosCell(t, 3, 1), specs: map[string]processSpec{}}
	c.alter = func(spec *processSpec) { c.specs[spec.Name] = *spec }
	c.startAll(t)
	before := c.run(t, "web", sleepers(1))
	c.off(t)
	// Thirteen days after a replacement with the times that are the defaults.
	next, err := c.authorityOf(t, 1).Replaced(time.Now().Add(-13*24*time.Hour), 4*24*time.Hour, 8*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	data, err := next.Encode()
	if err != nil {
		t.Fatal(err)
	}
	takes := func(i int) {
		t.Helper()
		if err := identity.WriteSecret(filepath.Join(c.masterDir(i), "authority.pem"), data); err != nil {
			t.Fatal(err)
		}
	}
	takes(1)
	takes(2)
	// Its machine renewed in time.
	if err := os.Remove(filepath.Join(c.borgletDir(1), "identity.pem")); err != nil {
		t.Fatal(err)
	}
	c.asksAnew(t)
	for i := 1; i <= c.Masters; i++ {
		if err := c.StartMaster(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.StartBorglet(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if elected, err := c.electedNow(shortly(t)); err != nil || elected == 3 {
		t.Errorf("elected is %d, %v; want 1 or 2", elected, err)
	}
	c.run(t, "later", sleepers(1))
	if state, err := c.each[2].GetCell(shortly(t)); err == nil {
		t.Errorf("the master that missed it answers: %v", state)
	}
	if err := c.Kill(c.masterName(3)); err != nil {
		t.Fatal(err)
	}
	takes(3)
	if err := c.StartMaster(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	err = until(shortly(t), "master 3 has caught up", func(ctx context.Context) error {
		ask, err := c.client.GetCell(ctx)
		if err != nil {
			return err
		}
		state, err := c.each[2].GetCell(ctx)
		if err == nil && state.AppliedIndex < ask.AppliedIndex {
			err = fmt.Errorf("it is at %d of %d", state.AppliedIndex, ask.AppliedIndex)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	c.stillSame(t, before, "web")
}

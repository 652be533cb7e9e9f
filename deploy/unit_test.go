package deploy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// unit is a unit of systemd: section, name, values.
type unit struct {
	values map[string]map[string][]string
}

func readUnit(path string) (*unit, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	u := &unit{values: make(map[string]map[string][]string)}
	section := ""
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if line[0] == '[' && line[len(line)-1] == ']' {
			section = line[1 : len(line)-1]
			u.values[section] = make(map[string][]string)
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || section == "" || strings.HasSuffix(line, "\\") {
			return nil, fmt.Errorf("%s:%d: not a line NAME=VALUE of a section: %s", path, n, line)
		}
		u.values[section][name] = append(u.values[section][name], value)
	}
	return u, nil
}

// service is the last value of a name in the section of services.
func (u *unit) service(name string) string {
	values := u.values["Service"][name]
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

func (u *unit) seconds(name string, otherwise int) time.Duration {
	if n, err := strconv.Atoi(u.service(name)); err == nil {
		otherwise = n
	}
	return time.Duration(otherwise) * time.Second
}

// known are the names that the units may have: a name that systemd does not know, or
// has in another section, would be passed over with a line in its journal.
var known = map[string][]string{
	"Unit": {"Description", "Wants", "After", "StartLimitIntervalSec"},
	"Service": {
		"ExecStart", "User", "Group", "Restart", "RestartSec", "KillMode", "Delegate", "TimeoutStopSec", "OOMScoreAdjust",
		"LimitNOFILE", "LimitCORE", "TasksMax", "UMask", "RuntimeDirectory", "RuntimeDirectoryMode", "ReadWritePaths",
		"ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectKernelTunables", "ProtectKernelModules",
		"ProtectControlGroups", "ProtectClock", "CapabilityBoundingSet", "NoNewPrivileges", "RestrictSUIDSGID",
		"RestrictAddressFamilies", "LockPersonality", "SystemCallArchitectures",
	},
	"Install": {"WantedBy"},
}

// apart are names with which systemd gives a service mounts or system calls of its
// own. What a borglet mounts must be there for the next one, and its tasks inherit
// the rest.
var apart = regexp.MustCompile(`^(Protect|Private|Restrict|ReadWritePaths|ReadOnlyPaths|RootDirectory|TemporaryFileSystem|Bind|SystemCall|NoNewPrivileges|MemoryDenyWriteExecute|LockPersonality|RuntimeDirectory|DynamicUser|User|CapabilityBoundingSet)`)

func TestUnits(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"borgmaster", "borglet"} {
		u, err := readUnit(program + ".service")
		if err != nil {
			t.Fatal(err)
		}
		for section, names := range u.values {
			for name, values := range names {
				if !slices.Contains(known[section], name) {
					t.Errorf("%s.service: no name %s is known in [%s]", program, name, section)
				}
				if len(values) > 1 {
					t.Errorf("%s.service: %s is there %d times", program, name, len(values))
				}
				if program == "borglet" && section == "Service" && apart.MatchString(name) {
					t.Errorf("borglet.service: with %s its tasks or the next borglet would not be as they should", name)
				}
			}
		}
		flags := "/etc/borg/" + program + ".yaml"
		if want := "/usr/local/bin/" + program + " serve --config " + flags; u.service("ExecStart") != want {
			t.Errorf("%s.service starts %q, want %q", program, u.service("ExecStart"), want)
		}
		for _, says := range []string{
			"deploy/" + program + ".service /etc/systemd/system/", "deploy/" + program + ".yaml > " + flags,
			"static/" + program + " ", " /usr/local/bin/\n", "systemctl enable --now " + program + "\n",
		} {
			if !strings.Contains(string(text), says) {
				t.Errorf("%s does not say %q, by which %s.service finds what it starts", page, says, program)
			}
		}
		if u.service("Restart") != "always" {
			t.Errorf("%s.service: Restart=%s, want always", program, u.service("Restart"))
		}
	}
}

// TestUnitOfTheBorglet holds what lets tasks outlive their borglet.
func TestUnitOfTheBorglet(t *testing.T) {
	u, err := readUnit("borglet.service")
	if err != nil {
		t.Fatal(err)
	}
	if u.service("KillMode") != "process" || u.service("Delegate") != "yes" {
		t.Errorf("KillMode=%s, Delegate=%s: want process and yes, or tasks end with their borglet", u.service("KillMode"), u.service("Delegate"))
	}
}

// TestFlagsFiles has the programs read the flags files, and see them agree with the
// units.
func TestFlagsFiles(t *testing.T) {
	bin := programs(t)
	for _, program := range []string{"borgmaster", "borglet"} {
		data, err := os.ReadFile(program + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), program+".yaml")
		for _, c := range []struct{ more, says string }{
			// Refused for its last flag: all others were read.
			{"", `wrong-on-purpose`},
			{"no-such-flag: 1\n", path + `:[0-9]+:[0-9]+: unknown name "no-such-flag"`},
		} {
			if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(data), "NUMBER", "3")+c.more), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(filepath.Join(bin, program), "serve", "--config", path, "--log-level", "info", "--http", "wrong-on-purpose").CombinedOutput()
			if err == nil || !regexp.MustCompile(c.says).Match(out) {
				t.Errorf("%s serve --config %s.yaml with %q: %v\n%s\nwant: %s", program, program, c.more, err, out, c.says)
			}
		}
	}
	u, err := readUnit("borgmaster.service")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("borgmaster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{"run-dir: /run/" + u.service("RuntimeDirectory") + "\n", "dir: " + u.service("ReadWritePaths") + "/west/NUMBER\n"} {
		if !strings.Contains(string(data), "\n"+says) {
			t.Errorf("borgmaster.service lets it write elsewhere: borgmaster.yaml does not say %q", says)
		}
	}
}

// programs is a directory with the programs: $BORG_BIN, or built now.
func programs(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and starts the programs: make e2e")
	}
	if dir := os.Getenv("BORG_BIN"); dir != "" {
		return dir
	}
	dir := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", dir, "borg/cmd/borgmaster", "borg/cmd/borglet").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return dir
}

// TestUnitsAreVerified has systemd's own reader look, without systemd. The programs
// are not where the units say, so that others stand there.
func TestUnitsAreVerified(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("needs systemd-analyze (Debian: systemd)")
	}
	for _, program := range []string{"borgmaster", "borglet"} {
		data, err := os.ReadFile(program + ".service")
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), program+".service")
		data = bytes.ReplaceAll(data, []byte("/usr/local/bin/"+program), []byte("/bin/true"))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "systemd-analyze", "verify", "--man=no", path)
		cmd.WaitDelay = time.Second
		out, err := cmd.CombinedOutput()
		// It looks at the units of the machine too, on which these depend.
		if err != nil || bytes.Contains(out, []byte(program+".service")) {
			t.Errorf("systemd-analyze verify %s.service: %v\n%s", program, err, out)
		}
	}
}

// TestPageIsRead holds that each kind of block is found, and that what is not marked
// is told.
func TestPageIsRead(t *testing.T) {
	blocks, err := readPage()
	if err != nil {
		t.Fatal(err)
	}
	parts := make(map[string]int)
	for _, b := range blocks {
		parts[b.part]++
	}
	for _, part := range []string{"", "upgrade", "raise", "remove", "replace"} {
		if parts[part] == 0 {
			t.Errorf("%s has no blocks of the part %q", page, part)
		}
	}
	for _, mark := range []string{"", "<!-- on: -->", "<!-- on: machine -->x", "<!-- on: elsewhere -->", "<!-- upgrade -->", "<!-- until: x -->", "<!-- on: master1; until: ( -->", "<!-- on: master1; often -->"} {
		if b, err := readMark(mark); err == nil {
			t.Errorf("the comment %q is read as %+v", mark, b)
		}
	}
}

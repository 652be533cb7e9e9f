package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// TestOddImages: an image that has something else where the task's own file systems are
// mounted does not run, with a reason of the image's own, counted against the task; or
// runs, where its links lead to a place in it. Nothing is mounted outside.
func TestOddImages(t *testing.T) {
	alongside(t)
	// Not below /tmp, which is the task's own.
	outside, err := os.MkdirTemp("/var/tmp", "borg-odd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(outside) })
	l := newLayout(t)
	with := func(more map[string]string) map[string]string {
		files := maps.Clone(usrMerged)
		maps.Copy(files, more)
		return files
	}
	type odd struct {
		files map[string]string
		// says is a part of the reason; empty: it runs.
		says string
		path string
	}
	cases := map[string]odd{
		"nothing of it":          {usrMerged, "", ""},
		"directories":            {with(map[string]string{"proc/": "", "sys/": "", "dev/": "", "tmp/": "", "run/": "", "proc/x": "x"}), "", ""},
		"tmp is a link in it":    {with(map[string]string{"tmp": "-> var/tmp", "var/tmp/": ""}), "", ""},
		"run is absolute":        {with(map[string]string{"run": "-> /var/run", "var/run/": ""}), "", ""},
		"tmp dangles":            {with(map[string]string{"tmp": "-> var/tmp"}), "not in the image", "/tmp"},
		"tmp leads to itself":    {with(map[string]string{"tmp": "-> tmp"}), "more than 40 symbolic links", "/tmp"},
		"tmp leads to proc":      {with(map[string]string{"tmp": "-> /proc/self", "proc/self/": ""}), "by a symbolic link", "/tmp"},
		"tmp leads outside":      {with(map[string]string{"tmp": "-> " + outside}), "not in the image", "/tmp"},
		"tmp is the root":        {with(map[string]string{"tmp": "-> /"}), "the root itself", "/tmp"},
		"tmp through a file":     {with(map[string]string{"tmp": "-> /etc/low/x"}), "leads through /etc/low, which is a file", "/tmp"},
		"a mount through a link": {with(map[string]string{"opt": "-> /sys", "sys/": ""}), "by a symbolic link", "/opt/it"},
		"names are directories":  {with(map[string]string{"etc/hostname/": ""}), "/etc/hostname is a directory; make it a file", "/etc/hostname"},
		"run/borg is a file":     {with(map[string]string{"run/borg": "x"}), "", ""},
		"files below task":       {with(map[string]string{"task/x": "x"}), "", ""},
	}
	for _, name := range []string{"proc", "sys", "dev", "tmp", "run", "task", ".borg"} {
		path := "/" + name
		if name == ".borg" {
			path = "/.borg/"
		}
		cases[name+" is a file"] = odd{with(map[string]string{name: "x"}), "is a file", path}
		if name != "tmp" && name != "run" {
			cases[name+" is a link"] = odd{with(map[string]string{name: "-> opt", "opt/": ""}), `is a symbolic link to "opt"; make it a directory`, path}
			cases[name+" is a link to outside"] = odd{with(map[string]string{name: "-> " + outside}), "is a symbolic link to", path}
		}
	}
	m := newMachine(t, "container", "--package-source", l.dir)
	for name, c := range cases {
		spec := &borgpb.TaskSpec{
			Args:     []string{"/bin/sh", "-c", "[ -d /proc/self/fd ] && [ -c /dev/null ] && touch /tmp/x && cat /etc/hostname"},
			Packages: []*borgpb.Package{packageIn(l.image(c.files), "/")},
			Mounts:   []*borgpb.Mount{{Source: "/usr", Path: "/usr"}, {Source: outside, Path: "/opt/it"}},
		}
		if strings.HasSuffix(name, " is a link") && c.says != "" {
			spec.Mounts = spec.Mounts[:1]
		}
		id := m.want(batch, spec)
		if c.says == "" {
			m.untilState(id, finished)
			continue
		}
		r := m.untilState(id, failed)
		e := r.GetExit()
		if e.GetReasonCode() != borgpb.ExitReason_EXIT_REASON_IMAGE || !strings.Contains(e.GetError(), "the image has no place for "+c.path) || !strings.Contains(e.GetError(), c.says) {
			t.Errorf("%s: got %v, want %v and %q", name, r, borgpb.ExitReason_EXIT_REASON_IMAGE, c.says)
		}
		if r.GetRestarts() > 0 {
			t.Errorf("%s: it was tried %d times more, as if the machine were at fault", name, r.GetRestarts())
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("something was made in %s: %v %v", filepath.Base(outside), left, err)
	}
}

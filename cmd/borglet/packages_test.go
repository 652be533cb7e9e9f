package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"net/http/httptest"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// layout is an OCI layout that a test writes.
type layout struct {
	t   *testing.T
	dir string
}

func newLayout(t *testing.T) *layout {
	t.Helper()
	l := &layout{t, t.TempDir()}
	if err := os.MkdirAll(filepath.Join(l.dir, "blobs/sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l.dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *layout) blob(mediaType string, content []byte) map[string]any {
	l.t.Helper()
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	if err := os.WriteFile(filepath.Join(l.dir, "blobs/sha256", sum), content, 0o644); err != nil {
		l.t.Fatal(err)
	}
	return map[string]any{"mediaType": mediaType, "digest": "sha256:" + sum, "size": len(content)}
}

// image writes an image, a layer for each map of names to what is in the files;
// "-> x" is a link, and a name that ends with / a directory.
func (l *layout) image(layers ...map[string]string) (digest string) {
	l.t.Helper()
	encode := func(v any) []byte {
		text, err := json.Marshal(v)
		if err != nil {
			l.t.Fatal(err)
		}
		return text
	}
	config := l.blob("application/vnd.oci.image.config.v1+json", encode(map[string]any{"os": "linux", "architecture": runtime.GOARCH}))
	var list []any
	for _, files := range layers {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		var names []string
		for name := range files {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			text := files[name]
			h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}
			if to, is := strings.CutPrefix(text, "-> "); is {
				h.Typeflag, h.Linkname, h.Size, text = tar.TypeSymlink, to, 0, ""
			} else if strings.HasSuffix(name, "/") {
				h.Typeflag, h.Mode = tar.TypeDir, 0o755
			} else if name == "dev/sda" {
				h.Typeflag = tar.TypeBlock
			}
			if err := w.WriteHeader(h); err != nil {
				l.t.Fatal(err)
			}
			if _, err := io.WriteString(w, text); err != nil {
				l.t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			l.t.Fatal(err)
		}
		list = append(list, l.blob("application/vnd.oci.image.layer.v1.tar", buf.Bytes()))
	}
	m := l.blob("application/vnd.oci.image.manifest.v1+json", encode(map[string]any{"schemaVersion": 2, "config": config, "layers": list}))
	return m["digest"].(string)
}

// packageIn is a package as a job names it.
func packageIn(digest, path string) *borgpb.Package {
	return &borgpb.Package{Name: "tool", Digest: digest, Path: path}
}

// usrMerged is an image that has nothing of its own but what leads to the /usr
// that is mounted in it.
var usrMerged = map[string]string{
	"bin": "-> usr/bin", "lib": "-> usr/lib", "lib64": "-> usr/lib64", "sbin": "-> usr/sbin",
	"etc/low": "low\n", "etc/both": "low\n", "etc/gone": "low\n", "usr/": "", "etc/hosts": "-> /nowhere",
}

// TestPackageAsRoot: an image is a task's root, its upper layers over its lower,
// and what a run writes there is the run's own.
func TestPackageAsRoot(t *testing.T) {
	l := newLayout(t)
	digest := l.image(usrMerged, map[string]string{"etc/both": "high\n", "etc/.wh.gone": "", "opt/": ""})
	m := newMachine(t, "container", "--package-source", l.dir)
	spec := &borgpb.TaskSpec{
		Args: []string{"/bin/sh", "-c", `
			echo low=$(cat /etc/low) both=$(cat /etc/both)
			[ -e /etc/gone ] || echo gone is gone
			[ -e /opt/mark ] || echo nothing of another run
			echo x > /opt/mark && echo opt is writable
			echo x > /etc/low && echo low=$(cat /etc/low)
			echo x > /usr/x || echo usr is read-only
			echo x > /task/x && echo task is writable
			echo host=$(cat /etc/hostname) named=$(hostname)
			grep -c localhost /etc/hosts > /dev/null && echo hosts are there
			mknod /tmp/null c 1 3 || echo no devices
			grep -E '^(CapEff|NoNewPrivs)' /proc/self/status | tr -d '\t'
		`},
		Packages: []*borgpb.Package{packageIn(digest, "/")},
		Mounts:   []*borgpb.Mount{{Source: "/usr", Path: "/usr"}},
	}
	for _, id := range []*borgrpc.CopyID{m.want(batch, spec), m.want(batch, spec)} {
		m.untilState(id, finished)
		out := m.logOf(id)
		for _, want := range []string{
			"low=low both=high\n", "gone is gone\n", "nothing of another run\n", "opt is writable\n", "low=x\n", "usr is read-only\n",
			"task is writable\n", "host=web-0 named=web-0\n", "hosts are there\n", "no devices\n", "CapEff:0000000000000000\n", "NoNewPrivs:1\n",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("it did not say %q:\n%s", want, out)
			}
		}
	}
	if mounts := mountsBelow(t, m.dir); mounts != "" {
		t.Errorf("mounts are seen on the machine:\n%s", mounts)
	}
}

func mountsBelow(t testing.TB, dir string) (list string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, dir) {
			list += line
		}
	}
	return list
}

// TestPackageAtPath: packages of one layer and of several are seen, read-only, in
// a task of the machine's own /usr.
func TestPackageAtPath(t *testing.T) {
	l := newLayout(t)
	one := l.image(map[string]string{"data/file": "one\n"})
	two := l.image(map[string]string{"a": "a\n", "b": "b\n"}, map[string]string{"c": "c\n", ".wh.b": ""})
	m := newMachine(t, "container", "--package-source", l.dir)
	id := m.want(batch, &borgpb.TaskSpec{
		Args: []string{"/bin/sh", "-c", `
			cat /opt/one/data/file; ls /srv/two | tr '\n' ' '; echo
			echo x > /opt/one/x || echo one is read-only
			echo x > /srv/two/x || echo two is read-only`},
		Packages: []*borgpb.Package{packageIn(one, "/opt/one"), packageIn(two, "/srv/two/")},
	})
	m.untilState(id, finished)
	out := m.logOf(id)
	for _, want := range []string{"one\n", "a c \n", "one is read-only\n", "two is read-only\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("it did not say %q:\n%s", want, out)
		}
	}
}

// TestPackageRefused: a package that cannot be had or seen is said, with the
// reason; nothing hangs.
func TestPackageRefused(t *testing.T) {
	l := newLayout(t)
	good := l.image(map[string]string{"x": "x"})
	m := newMachine(t, "container", "--package-source", l.dir, "--backoff", "10ms")
	for _, c := range []struct {
		digest, path, reason string
	}{
		{"sha256:" + strings.Repeat("0", 64), "/opt/tool", "it is not there"},
		{l.image(map[string]string{"dev/sda": ""}), "/opt/tool", "it is a device"},
		{good, "/usr/lib/tool", "in which nothing is made"},
		{good, "/proc/tool", "nothing may be mounted in /proc"},
	} {
		id := m.want(batch, &borgpb.TaskSpec{Args: []string{"true"}, Packages: []*borgpb.Package{packageIn(c.digest, c.path)}})
		if r := m.untilState(id, failed); !strings.Contains(r.GetExit().GetError(), c.reason) {
			t.Errorf("%s at %s: it says %q, want %q", c.digest, c.path, r.GetExit().GetError(), c.reason)
		}
	}
	plain := newMachine(t, "process", "--package-source", l.dir)
	id := plain.want(batch, &borgpb.TaskSpec{Args: []string{"true"}, Packages: []*borgpb.Package{packageIn(good, "/opt/tool")}})
	if r := plain.untilState(id, failed); !strings.Contains(r.GetExit().GetError(), "runtime=container") {
		t.Errorf("as a plain process: it says %q", r.GetExit().GetError())
	}
}

// TestPackageKeptByCopy: packages are kept through the death of the borglet as long
// as a copy needs them, and no longer; the task goes on without its source.
func TestPackageKeptByCopy(t *testing.T) {
	l := newLayout(t)
	digest := l.image(usrMerged, map[string]string{"mark": "of the image\n"})
	m := newMachine(t, "container", "--package-source", l.dir)
	id := m.want(service, &borgpb.TaskSpec{
		Args:     []string{"/bin/sh", "-c", "trap 'cat /mark; exit 0' TERM; echo up; while :; do sleep 0.1; done"},
		Packages: []*borgpb.Package{packageIn(digest, "/")}, Mounts: []*borgpb.Mount{{Source: "/usr", Path: "/usr"}},
	})
	before := m.untilState(id, running)
	refs := func() int {
		list, err := os.ReadDir(filepath.Join(m.dir, "packages", "refs"))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	m.kill()
	m.start()
	if after := m.untilState(id, running); after.GetPid() != before.GetPid() {
		t.Errorf("the next borglet has process %d, not %d", after.GetPid(), before.GetPid())
	}
	if n := refs(); n != 1 {
		t.Errorf("%d copies refer to packages, want 1", n)
	}
	m.stops = append(m.stops, &borgrpc.Stop{Copy: id, GraceNs: int64(patience)})
	m.untilState(id, stopped)
	if out := m.logOf(id); !strings.Contains(out, "of the image\n") {
		t.Errorf("it said %q", out)
	}
	m.until(id, "without its reference", func(*borgpb.TaskReport) bool { return refs() == 0 })
}

// TestStopWhileFetching: a copy whose package does not come stops when it is told
// to, and others start meanwhile.
func TestStopWhileFetching(t *testing.T) {
	var asked atomic.Bool
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/v2/" {
			asked.Store(true)
			<-req.Context().Done()
		}
	}))
	t.Cleanup(silent.Close)
	m := newMachine(t, "container", "--package-source", silent.URL+"/a/tool")
	var waiting []*borgrpc.CopyID
	for range 20 {
		waiting = append(waiting, m.want(service, &borgpb.TaskSpec{Args: []string{"true"},
			Packages: []*borgpb.Package{packageIn("sha256:"+strings.Repeat("1", 64), "/opt/tool")}}))
	}
	m.until(waiting[0], "asking for it", func(*borgpb.TaskReport) bool { return asked.Load() })
	m.untilState(m.want(batch, &borgpb.TaskSpec{Args: []string{"true"}}), finished)
	for _, id := range waiting {
		m.stops = append(m.stops, &borgrpc.Stop{Copy: id})
	}
	for _, id := range waiting {
		m.untilState(id, stopped)
	}
}

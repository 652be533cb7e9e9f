package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"borg/checkpoint"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// needle is what is searched for: a value, whole or in pieces, in the forms in
// which programs write bytes.
type needle struct {
	name  string
	forms [][]byte
}

// pieceBytes is the size of the pieces: compression may cut a value.
const pieceBytes = 12

func newNeedle(name string, value []byte) needle {
	n := needle{name: name}
	for piece := range slices.Chunk(value, pieceBytes) {
		if len(piece) < pieceBytes {
			break
		}
		n.forms = append(n.forms, piece, []byte(hex.EncodeToString(piece)), fmt.Appendf(nil, "%X", piece),
			bytes.Trim(fmt.Append(nil, piece), "[]"))
	}
	// What base 64 makes of it depends on where it begins in a group of three.
	for shift := range 3 {
		text := base64.StdEncoding.EncodeToString(append(make([]byte, shift), value...))
		n.forms = append(n.forms, []byte(text[4:len(text)-4]))
	}
	return n
}

func (n needle) in(data []byte) bool {
	return slices.ContainsFunc(n.forms, func(form []byte) bool { return bytes.Contains(data, form) })
}

// haystack is everything that a cell writes or says.
type haystack struct {
	t *testing.T
	// What was looked at, by where it was.
	files, bytes int
	// Where each needle was found.
	found map[string][]string
}

func (h *haystack) look(where string, data []byte, needles []needle) {
	h.files++
	h.bytes += len(data)
	for _, n := range needles {
		if n.in(data) {
			h.found[n.name] = append(h.found[n.name], where)
		}
	}
}

// lookBelow looks at all files of a directory, and at their names.
func (h *haystack) lookBelow(dir string, needles []needle) {
	h.t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			// Databases replace their files while we look.
			return nil
		}
		h.look("name of "+path, []byte(path), needles)
		if !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		h.look(path, data, needles)
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// lookAtProcesses looks at the command lines and environments of the cell's
// processes, its tasks among them.
func (h *haystack) lookAtProcesses(l layout, needles []needle) {
	h.t.Helper()
	found, err := l.marks().find()
	if err != nil || len(found) == 0 {
		h.t.Fatalf("the cell has processes %v, %v", found, err)
	}
	for _, p := range found {
		for _, name := range []string{"cmdline", "environ"} {
			path := fmt.Sprintf("/proc/%d/%s", p.PID, name)
			if data, err := os.ReadFile(path); err == nil {
				h.look(path, data, needles)
			}
		}
	}
}

// lookAtCheckpoint saves one and looks at the file, at the records in it, and at
// what fauxmaster tells of it. No key is at hand.
func (h *haystack) lookAtCheckpoint(c *Cell, needles []needle) {
	h.t.Helper()
	path := filepath.Join(filepath.Dir(c.dir), "canary.ckpt")
	h.run(c, nil, needles, "borgmaster", "checkpoint", "save", "--force", "--from", c.masterAddr(1), path)
	h.run(c, nil, needles, "fauxmaster", "show", path)
	h.run(c, nil, needles, "fauxmaster", "show", "-o", "json", path)
	data, err := os.ReadFile(path)
	if err != nil {
		h.t.Fatal(err)
	}
	h.look(path, data, needles)
	r, err := checkpoint.NewReader(bytes.NewReader(data))
	if err != nil {
		h.t.Fatal(err)
	}
	secrets := 0
	for key, value := range r.Records() {
		if key[0] == 0x62 {
			secrets++
		}
		h.look(fmt.Sprintf("record %x of the checkpoint", key), append(bytes.Clone(key), value...), needles)
	}
	if err := r.Err(); err != nil || secrets != 1 {
		h.t.Errorf("the checkpoint holds %d secrets, %v, want one", secrets, err)
	}
}

// run runs a program of the cell and looks at what it says.
func (h *haystack) run(c *Cell, stdin []byte, needles []needle, program string, args ...string) string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.bin(program), args...)
	cmd.Dir = filepath.Dir(c.dir)
	cmd.Env = append(os.Environ(), "BORG_CELL="+c.cellFile())
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		h.t.Errorf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	h.look(program+" "+strings.Join(args, " "), out, needles)
	return string(out)
}

// lookAtPages looks at all that the programs show of themselves over HTTP, and wants
// each to be there.
func (h *haystack) lookAtPages(c *Cell, needles []needle) {
	h.t.Helper()
	pages := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	look := func(url string) (code int) {
		req, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, url, nil)
		if err != nil {
			h.t.Fatal(err)
		}
		resp, err := pages.Do(req)
		if err != nil {
			h.t.Errorf("%s: %v", url, err)
			return 0
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			h.t.Errorf("%s: %v", url, err)
		}
		h.look(url, body, needles)
		return resp.StatusCode
	}
	schedulers := 0
	for i := 1; i <= c.Masters; i++ {
		for _, path := range []string{"", "?format=json", "metrics"} {
			if code := look("http://" + c.masterPage(i) + "/" + path); code != http.StatusOK {
				h.t.Errorf("/%s of master %d: %d", path, i, code)
			}
			if look("http://"+c.masterPage(i)+"/scheduler/"+path) == http.StatusOK {
				schedulers++
			}
		}
	}
	if schedulers < 3 {
		h.t.Errorf("%d pages of a scheduler, want three", schedulers)
	}
	for k := 1; k <= c.Machines; k++ {
		for _, path := range []string{"", "?format=json", "metrics"} {
			if code := look("http://" + c.borgletPage(k) + "/" + path); code != http.StatusOK {
				h.t.Errorf("/%s of machine %d: %d", path, k, code)
			}
		}
	}
}

// verbs of borgcfg that say something of a cell with a job "canary".
var canaryVerbs = [][]string{
	{"-v", "status"}, {"status", "-o", "wide"}, {"status", "-o", "json"}, {"status", "canary"}, {"status", "canary", "-o", "json"},
	{"tasks", "-o", "wide"}, {"tasks", "canary", "-o", "json", "--attempts"}, {"tasks", "canary", "-o", "yaml"},
	{"logs", "canary/0"}, {"logs", "canary/0", "--stderr"}, {"why", "canary/0"}, {"why", "canary/0", "-o", "json"},
	{"events", "-o", "json"}, {"events"}, {"machine", "list", "-o", "json"}, {"alloc", "list", "-o", "json"},
	{"whoami", "-o", "json"}, {"can-i", "secret"}, {"user", "list", "-o", "json"}, {"config", "view"}, {"version"},
	{"-v", "secret", "list"}, {"secret", "list", "-o", "json"}, {"secret", "list", "-o", "yaml"}, {"secret", "list", "-o", "name"},
	{"resize", "canary", "1"},
}

// TestCanary plants the value of a secret in a real cell and searches it in all
// that the cell writes, says, keeps and dumps when it is aborted. The same search
// finds a value that is no secret, so it can see there; and the secret is where
// it must be: in the file of the task that names it.
func TestCanary(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 3, 2)
	c.hasLatestFormat(t)
	random := func() string {
		var b [36]byte
		rand.Read(b[:])
		return base64.RawURLEncoding.EncodeToString(b[:])
	}
	value, open := random(), random()
	secret, control := newNeedle("secret", []byte(value)), newNeedle("control", []byte(open))
	needles := []needle{secret, control}
	keys := c.cellKeys(t)
	for i, key := range keys {
		needles = append(needles, newNeedle(fmt.Sprint("key ", i), key))
	}
	h := &haystack{t: t, found: map[string][]string{}}

	h.run(c, []byte(value), needles, "borgcfg", "-v", "secret", "set", "canary", "--reason", "canary "+open)
	spec := sleepers(1)
	spec.Task.Secrets = []string{"canary"}
	spec.Task.Env = map[string]string{"CONTROL": open}
	spec.Task.Args = []string{"/bin/sh", "-c", "env; cat /proc/self/mountinfo; ls -lR $BORG_SECRETS/..; wc -c <$BORG_SECRETS/canary; sha256sum <$BORG_SECRETS/canary; echo done; exec sleep 1000000"}
	before := c.run(t, "canary", spec)
	var out string
	waitFor(t, "the task has looked at its secret", func() string {
		if out = c.output(t, "canary"); strings.Contains(out, "done\n") {
			return ""
		}
		return fmt.Sprintf("it has said %q", out)
	})
	if sum := sha256Hex(value); !strings.Contains(out, sum) || !strings.Contains(out, fmt.Sprint(len(value))+"\n") {
		t.Errorf("the task did not read the value that was set:\n%s", out)
	}
	look := func() {
		t.Helper()
		for _, verb := range canaryVerbs {
			h.run(c, nil, needles, "borgcfg", verb...)
		}
		h.lookAtCheckpoint(c, needles)
		h.lookAtProcesses(c.layout, needles)
		h.lookAtPages(c, needles)
	}
	look()

	// A task that is started again, by another borglet than the first.
	if err := c.Kill(c.machineName(1)); err != nil {
		t.Fatal(err)
	}
	if err := c.StartBorglet(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	// All that serve are aborted, and write down what each goroutine was at.
	dumped := 0
	for _, name := range c.Processes() {
		pid := c.PID(name)
		if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
			t.Fatal(err)
		}
		waitFor(t, name+" is started again", func() string {
			if now := c.PID(name); now == 0 || now == pid {
				return "it is not"
			}
			return ""
		})
		log, err := os.ReadFile(c.logPath(name))
		if err != nil {
			t.Fatal(err)
		}
		dumped += bytes.Count(log, []byte("SIGQUIT: quit"))
	}
	if dumped < len(c.Processes()) {
		t.Errorf("%d of %d processes have dumped their goroutines", dumped, len(c.Processes()))
	}
	if _, err := c.jobIs(shortly(t), "canary", "all tasks run", started); err != nil {
		t.Fatal(err)
	}
	c.stillSame(t, before, "canary")
	waitFor(t, "the cell answers again", func() string {
		if _, err := c.client.ListSecrets(t.Context(), c.user); err != nil {
			return err.Error()
		}
		return ""
	})
	look()

	// Another key: all that was searched may have changed.
	rotated, err := c.client.RotateCellKey(shortly(t), &borgrpc.RotateCellKeyRequest{})
	if err != nil || rotated.Sealed != 1 || len(rotated.Untold) > 0 {
		t.Fatalf("RotateCellKey = %v, %v", rotated, err)
	}
	for _, key := range c.cellKeys(t) {
		needles = append(needles, newNeedle("the next key", key))
		for _, old := range keys {
			if bytes.Equal(key, old) {
				t.Error("a replica still has the old key")
			}
		}
	}
	look()

	h.lookBelow(c.dir, needles)
	h.lookBelow(c.RunDir, needles)
	t.Logf("looked at %d files, outputs and records, %d MiB", h.files, h.bytes>>20)
	if at := h.found["secret"]; len(at) > 0 {
		t.Errorf("the secret is in %s", strings.Join(at, "\n"))
	}
	// The keys are in their files and nowhere else.
	for name, at := range h.found {
		if name == "secret" || name == "control" {
			continue
		}
		for _, where := range at {
			if filepath.Base(where) != "cell-keys.json" {
				t.Errorf("%s is in %s", name, where)
			}
		}
	}
	if len(h.found["the next key"]) != c.Masters {
		t.Errorf("the next key is in %v, want the files of %d masters", h.found["the next key"], c.Masters)
	}
	// The control is in the logs of raft, in checkpoints, events and outputs.
	for _, place := range []string{"masters/1/db", "masters/2/db", "borglets/", "record 41", "borgcfg tasks", "borgcfg events", "/environ", "fauxmaster show -o json"} {
		if !slices.ContainsFunc(h.found["control"], func(at string) bool { return strings.Contains(at, place) }) {
			t.Errorf("the search does not see into %s: the control was found in %d places", place, len(h.found["control"]))
		}
	}
	papers := &haystack{t: t, found: map[string][]string{}}
	for k := 1; k <= c.Machines; k++ {
		papers.lookBelow(c.papersOf(k), []needle{secret})
	}
	if at := papers.found["secret"]; len(at) != 1 || !strings.HasSuffix(at[0], "/secrets/canary") {
		t.Errorf("the secret is in the papers %v, want in one file of the task", at)
	}
	// It goes with the task.
	if _, err := c.client.Mutate(shortly(t), &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: c.user, Name: "canary"}}}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the secret goes with the task", func() string {
		papers := &haystack{t: t, found: map[string][]string{}}
		for k := 1; k <= c.Machines; k++ {
			papers.lookBelow(c.papersOf(k), []needle{secret})
		}
		return strings.Join(papers.found["secret"], "\n")
	})
}

// cellKeys are those in the files of the masters, each once.
func (c *Cell) cellKeys(t *testing.T) [][]byte {
	t.Helper()
	var keys [][]byte
	for i := 1; i <= c.Masters; i++ {
		path := filepath.Join(c.masterDir(i), "cell-keys.json")
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("%s: %v, %v, want mode 0600", path, info, err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var file struct{ Keys [][]byte }
		if err := json.Unmarshal(data, &file); err != nil || len(file.Keys) != 1 {
			t.Fatalf("%s holds %d keys, %v", path, len(file.Keys), err)
		}
		if !slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, file.Keys[0]) }) {
			keys = append(keys, file.Keys[0])
		}
	}
	return keys
}

func sha256Hex(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

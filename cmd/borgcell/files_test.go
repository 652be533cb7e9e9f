package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"borg/borgmaster/client"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestTasksUseFiles: a task in its container, with the certificate that it was given
// and nothing else, writes a small file that its user reads, reads one that its user
// writes, is refused another user's, and finds where it is itself.
func TestTasksUseFiles(t *testing.T) {
	alongside(t)
	c := chaosCell(t, size(1, 3), 1)
	spec := sleepers(1)
	spec.Task.Ports = []string{"http"}
	spec.Task.Mounts = []*borgpb.Mount{{Source: c.binDir, Path: c.binDir}}
	// The cell may not be of the format that has files yet.
	spec.Task.Args = []string{"/bin/sh", "-c", fmt.Sprintf(`b=%s
until echo ready | $b file put conf/state; do sleep 0.2; done
echo second | $b file put conf/state --if-version 0 || echo "first: $?"
until [ "$($b file get conf/go)" = go ]; do sleep 0.2; done
echo leads | $b file put conf/leader --if-version 0
echo x | $b file put /somebody/conf/leader || echo "another's: $?"
$b file get /somebody/conf/leader || echo "not even to read: $?"
$b file ls -o name
$b resolve web
echo done; exec sleep 1000000`, filepath.Join(c.binDir, "borgcfg"))}
	c.run(t, "web", spec)
	said := func() string { return c.output(t, "web") }
	waitFor(t, "the task has written its file", func() string {
		resp, err := c.client.ReadFile(shortly(t), &borgrpc.ReadFileRequest{User: c.user, Name: "conf/state"})
		if err == nil && string(resp.Content) == "ready\n" && resp.File.Version == 1 {
			return ""
		}
		return fmt.Sprintf("%v, %v; the task says\n%s", resp, err, said())
	})
	// As it is known to its user.
	where, err := c.client.Resolve(shortly(t), &borgrpc.ResolveRequest{User: c.user, Job: "web"})
	if err != nil || len(where.Endpoints) != 1 || !where.Endpoints[0].Running || where.Endpoints[0].Ports["http"] == 0 {
		t.Fatalf("the task is at %v, %v", where, err)
	}
	if _, err := c.client.WriteFile(shortly(t), c.user, "conf/go", []byte("go\n"), nil); err != nil {
		t.Fatal(err)
	}
	out := c.wrote(t, "web", "done\n")
	one := where.Endpoints[0]
	for _, want := range []string{"first: 4\n", "another's: 8\n", "not even to read: 8\n", "conf/go\nconf/leader\nconf/state\n", fmt.Sprintf("http=%s:%d\n", one.Host, one.Ports["http"])} {
		if !strings.Contains(out, want) {
			t.Errorf("the task does not say %q:\n%s", want, out)
		}
	}
	resp, err := c.client.ReadFile(shortly(t), &borgrpc.ReadFileRequest{User: c.user, Name: "conf/leader"})
	if err != nil || string(resp.Content) != "leads\n" {
		t.Errorf("the file of the task is %v, %v", resp, err)
	}
	var refused *client.RefusedError
	if _, err := c.client.WriteFile(shortly(t), c.user, "conf/leader", nil, new(uint64)); !errors.As(err, &refused) {
		t.Errorf("its user writes what must not be there: %v", err)
	}
}

package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// output is what the first task of a job has written so far.
func (c *Cell) output(t *testing.T, name string) string {
	t.Helper()
	var text bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := c.client.Logs(ctx, &borgrpc.LogsRequest{User: c.user, Name: name}, func(r *borgrpc.LogsResponse) error {
		text.Write(r.GetData())
		return nil
	})
	if err != nil {
		t.Logf("logs of %s: %v", name, err)
	}
	return text.String()
}

// wrote waits until the first task of a job has written what is wanted, and returns all that
// it has.
func (c *Cell) wrote(t *testing.T, name, want string) (out string) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%s writes %q", name, want), func() string {
		if out = c.output(t, name); strings.Contains(out, want) {
			return ""
		}
		return fmt.Sprintf("it has written %q", out)
	})
	return out
}

// TestTasksHaveCertificates: a task finds a certificate in its own name where its
// environment says, which the masters and nobody else believe; killing borglets
// and masters costs it nothing, and it goes with the task.
func TestTasksHaveCertificates(t *testing.T) {
	alongside(t)
	var c *Cell
	// After the cell has stopped: cleaning up goes backwards.
	t.Cleanup(func() {
		if _, err := os.Stat(c.papersOf(1)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", c.papersOf(1), err)
		}
	})
	c = chaosCell(t, 1, 1)
	spec := sleepers(1)
	spec.Task.Args = []string{"/bin/sh", "-c", "cat $BORG_IDENTITY; cat $BORG_KEY $BORG_CERT $BORG_CA; ls -l $BORG_CELL_FILE; echo x > $BORG_CERT || echo read-only; echo done; exec sleep 1000000"}
	before := c.run(t, "web", spec)
	out := c.wrote(t, "web", "done\n")
	whole, parts, _ := strings.Cut(out, "-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY")
	credential, err := identity.DecodeCredential([]byte(whole + "-----END CERTIFICATE-----\n"))
	if err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if want := "spiffe://" + c.Name + "/task/" + c.user + "/web/0"; credential.Name.String() != want {
		t.Errorf("the task is %s, want %s", credential.Name, want)
	}
	// The files of their own are what any other program takes.
	parts = "-----BEGIN PRIVATE KEY" + parts
	key, cert, _ := strings.Cut(parts, "-----BEGIN CERTIFICATE")
	pair, err := tls.X509KeyPair([]byte("-----BEGIN CERTIFICATE"+cert), []byte(key))
	if err != nil {
		t.Fatalf("the key and the certificate: %v", err)
	}
	if leaf, err := x509.ParseCertificate(pair.Certificate[0]); err != nil || len(leaf.URIs) != 1 || !bytes.Equal(pair.PrivateKey.(ed25519.PrivateKey).Public().(ed25519.PublicKey), leaf.PublicKey.(ed25519.PublicKey)) {
		t.Errorf("the certificate is %v, %v", leaf, err)
	}
	if runtimes, err := c.runtimes(t.Context()); err == nil && strings.Contains(runtimes, "container") && !strings.Contains(out, "read-only\n") {
		t.Errorf("the task can write its papers:\n%s", out)
	}
	// A task has no say over what is its user's.
	who := identity.NewSource(credential, nil, nil)
	conn, err := door.Dial(c.masterAddr(1), who, door.AnyMaster(who))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := borgrpc.NewMasterServiceClient(conn).ListMachines(shortly(t), &borgrpc.ListMachinesRequest{}); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "you are task "+c.user+"/web/0") {
		t.Errorf("a task lists the machines: %v, want PermissionDenied", err)
	}

	// The next borglet has them renewed: it does not know when they run out.
	current := func() string {
		found, _ := filepath.Glob(filepath.Join(c.papersOf(1), "*", "current", "cert.pem"))
		if len(found) != 1 {
			return ""
		}
		text, _ := os.ReadFile(found[0])
		return string(text)
	}
	was := current()
	if was == "" {
		t.Fatalf("there are no papers below %s", c.papersOf(1))
	}
	if err := c.Kill(c.machineName(1)); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(c.masterName(1)); err != nil {
		t.Fatal(err)
	}
	if current() != was {
		t.Error("the papers went with the borglet")
	}
	if err := c.StartBorglet(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := c.StartMaster(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the next borglet has new papers for the task", func() string {
		if now := current(); now == was || now == "" {
			return "they are the same"
		}
		return ""
	})
	c.stillSame(t, before, "web")

	op := &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: c.user, Name: "web"}}}
	if _, err := c.client.Mutate(shortly(t), op); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the papers go with the task", func() string {
		if now := current(); now != "" {
			return "they are still there"
		}
		return ""
	})
}

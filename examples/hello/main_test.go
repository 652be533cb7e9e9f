package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// The page names the greeting and the task, and a stop ends the server.
func TestPage(t *testing.T) {
	t.Setenv("BORG_TASK", "alice/web/2")
	t.Setenv("BORG_ATTEMPT", "1")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener, "good day") }()

	for path, want := range map[string]string{
		"/":        "good day from alice/web/2 attempt 1\n",
		"/healthz": "ok\n",
	} {
		resp, err := http.Get("http://" + listener.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != want {
			t.Errorf("GET %s = %q, %v, want %q", path, body, err, want)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("serve after stop: %v", err)
	}
}

func TestPortIsNeeded(t *testing.T) {
	for _, port := range []string{"", "http", "0", "65536", "-1"} {
		err := run(t.Context(), []string{"--port=" + port})
		if err == nil || !strings.Contains(err.Error(), "1 to 65535") {
			t.Errorf("run with port %q: %v", port, err)
		}
	}
}

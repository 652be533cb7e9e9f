package door_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"borg/identity"
	"borg/proto/door"
)

// TestPagesHaveARate: raw clients that ask as fast as they can are served what is allowed at once and then told to come
// again, on every kind of listener where others than the program itself ask.
func TestPagesHaveARate(t *testing.T) {
	const clients, each = 8, door.MaxPagesAtOnce
	who := source(t, identity.User, "alice")
	for _, at := range []struct {
		name, addr string
		bounded    bool
	}{{"plain", "127.0.0.1:0", true}, {"tls", "0.0.0.0:0", true}, {"socket", "unix:" + t.TempDir() + "/pages", false}} {
		t.Run(at.name, func(t *testing.T) {
			dial := lobbyServer(t, at.addr)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			codes := make(chan int, clients*each)
			for range clients {
				conn := dial()
				if at.name == "tls" {
					conn = lobbyTLS(t, conn, who, "http/1.1")
				}
				go func() { _, _ = io.WriteString(conn, strings.Repeat(halfRequest+otherHalf, each)) }()
				go pageCodes(ctx, conn, each, codes)
			}
			served, refused := 0, 0
			for range clients * each {
				switch code := <-codes; code {
				case http.StatusOK:
					served++
				case http.StatusTooManyRequests:
					refused++
				default:
					t.Fatalf("a request was answered %d", code)
				}
				if at.bounded && refused > 0 {
					break
				}
			}
			if at.bounded && (refused == 0 || served < door.MaxPagesAtOnce) {
				t.Errorf("%d of %d requests were served and %d refused, want %d or more and some", served, clients*each, refused, door.MaxPagesAtOnce)
			}
			if !at.bounded && refused > 0 {
				t.Errorf("%d requests on a socket were refused", refused)
			}
		})
	}
}

// pageCodes reads n answers and tells their codes; 0: one without Retry-After that should have it, or none.
func pageCodes(ctx context.Context, conn net.Conn, n int, to chan<- int) {
	r := bufio.NewReader(conn)
	for range n {
		resp, err := http.ReadResponse(r, nil)
		code := 0
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			if code = resp.StatusCode; code == http.StatusTooManyRequests && resp.Header.Get("Retry-After") == "" {
				code = 0
			}
		}
		select {
		case to <- code:
		case <-ctx.Done():
			return
		}
	}
}

// TestPageBudgets: one caller's requests take nothing from the budget of another, nor do those of many callers that are
// not told apart, until all together have used theirs.
func TestPageBudgets(t *testing.T) {
	allow := door.NewPageBudgets()
	for range 10 * door.MaxPagesAtOnce {
		allow("10.0.0.1")
	}
	if !allow("10.0.0.2") {
		t.Error("one caller's flood refuses another")
	}
	served := 0
	for i := range 4 * door.AllPagesAtOnce {
		if allow(fmt.Sprint("10.1.", i/256, ".", i%256)) {
			served++
		}
	}
	if served == 4*door.AllPagesAtOnce {
		t.Errorf("%d callers together were served %d requests", 4*door.AllPagesAtOnce, served)
	}
}

package portholder

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
)

// TestOf: the process that listens on a port is named, and nobody when none does.
func TestOf(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	if got := Of(port); !strings.HasSuffix(got, fmt.Sprintf("(process %d)", os.Getpid())) {
		t.Errorf("Of says %q, want this process, %d", got, os.Getpid())
	}
	l.Close()
	if got := Of(port); got != "" {
		t.Errorf("nobody listens, and Of says %q", got)
	}
}

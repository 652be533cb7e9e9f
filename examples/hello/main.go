// Hello is a small web server to try a cell with. It serves a page that says
// which task answers, so that one can see tasks spread, restart and update.
//
// It is built without cgo and needs nothing from the file system that it runs
// in.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// stopWait bounds how long pages that are being served may hold up the end.
const stopWait = 2 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "hello:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("hello", flag.ContinueOnError)
	port := flags.String("port", os.Getenv("PORT"), "TCP port to serve on; by default the first port granted to the task")
	greeting := flags.String("greeting", "hello", "first word of the page")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if n, err := strconv.ParseUint(*port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("port %q is not a number from 1 to 65535; ask for a port in the job file and give --port={{port.http}}", *port)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("", *port))
	if err != nil {
		return fmt.Errorf("serve on port %s: %w", *port, err)
	}
	fmt.Printf("%s: serving on port %s\n", self(), *port)
	return serve(ctx, listener, *greeting)
}

// serve answers on listener until ctx is done, then lets what is under way
// finish.
func serve(ctx context.Context, listener net.Listener, greeting string) error {
	server := &http.Server{Handler: pages(greeting), ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	fmt.Printf("%s: told to stop\n", self())
	stopCtx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	err := server.Shutdown(stopCtx)
	<-ended
	return err
}

func pages(greeting string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Printf("%s: page for %s\n", self(), r.RemoteAddr)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "%s from %s\n", greeting, self())
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// self names the task that this is, or the process where it is none.
func self() string {
	task := os.Getenv("BORG_TASK")
	if task == "" {
		return "process " + strconv.Itoa(os.Getpid())
	}
	return fmt.Sprintf("%s attempt %s", task, os.Getenv("BORG_ATTEMPT"))
}

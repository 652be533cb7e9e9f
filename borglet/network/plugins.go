package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
)

const (
	// outputPatience is how long what a plugin has started may hold its output after it
	// has ended.
	outputPatience = 5 * time.Second
	// awaitEvery is how often is looked whether plugins are through.
	awaitEvery = 20 * time.Millisecond
	// maxSaidBytes bounds what is told of a plugin that fails.
	maxSaidBytes = 300
)

// plugins starts them as libcni wants it, each with a file that it holds locked until
// it, and what it has started, is through.
type plugins struct {
	version.PluginDecoder
	// Empty: none.
	lock string
}

// FindInPath finds a plugin.
func (p *plugins) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// ExecPlugin runs a plugin and returns what it says.
func (p *plugins) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path)
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = environ, bytes.NewReader(stdin), &stdout, &stderr, outputPatience
	if p.lock != "" {
		lock, err := os.OpenFile(p.lock, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock the running of plugins: %w", err)
		}
		defer lock.Close()
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_SH); err != nil {
			return nil, fmt.Errorf("lock %s: %w", p.lock, err)
		}
		cmd.ExtraFiles = []*os.File{lock}
	}
	err := cmd.Run()
	switch {
	case err == nil:
		return stdout.Bytes(), nil
	case ctx.Err() != nil:
		return nil, &types.Error{Msg: "it did not end in time and was stopped"}
	}
	said := &types.Error{}
	if json.Unmarshal(stdout.Bytes(), said) == nil && said.Msg != "" {
		return nil, said
	}
	text := strings.TrimSpace(stderr.String() + stdout.String())
	return nil, &types.Error{Msg: strings.TrimSpace(fmt.Sprintf("%v %s", err, strings.ToValidUTF8(text[:min(len(text), maxSaidBytes)], "")))}
}

// awaitPlugins waits until none runs that an earlier borglet has started.
func awaitPlugins(lock string, log *slog.Logger) error {
	f, err := os.OpenFile(lock, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("lock the running of plugins: %w", err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(context.Background(), pluginsPatience)
	defer cancel()
	ticker := time.NewTicker(awaitEvery)
	defer ticker.Stop()
	for waits := false; ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w", lock, err)
		}
		if !waits {
			waits = true
			log.Info("waits for network plugins that an earlier borglet has started")
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("a network plugin that an earlier borglet started does not end; see who has %s open, and end it", lock)
		}
	}
}

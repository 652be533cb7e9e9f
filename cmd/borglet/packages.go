package main

import (
	"errors"
	"net"
	"path/filepath"

	ucli "github.com/urfave/cli/v2"

	"borg/borglet/packages"
	"borg/cli"
	"borg/proto/door"
)

// packageFlags are about the packages of the machine.
var packageFlags = []ucli.Flag{
	&ucli.StringSliceFlag{Name: "package-source", Usage: "`WHERE` packages come from: https://HOST/REPOSITORY, an OCI layout or an archive of one; may be repeated, the first that has one counts"},
	&ucli.StringFlag{Name: "package-credentials", Usage: "`FILE` with who this machine is to registries, in the form of docker's configuration, with mode 0600 (default: ~/.docker/config.json)"},
	&ucli.StringFlag{Name: "package-bytes", Value: "20GiB", Usage: "how much disk packages may take, used or not; at least 16MiB"},
	&ucli.StringFlag{Name: "package-listen", Usage: "`ADDRESS` (host:port) at which other machines of the cell fetch packages, at the host of --advertise; \"none\": nowhere (default: any port of the host of --listen)"},
	&ucli.StringFlag{Name: "package-pace", Value: "100MiB", Usage: "how many bytes a second other machines are sent, all together; 0: as many as they take"},
}

// packageConfig is what a borglet is told of its packages.
type packageConfig struct {
	sources []packages.Source
	// How much of the disk they may take, and what others are sent a second.
	limitBytes, paceBytes int64
	// Where other machines fetch them; empty: nowhere.
	listen string
}

func newPackageConfig(ctx *ucli.Context, listen string) (c packageConfig, err error) {
	if c.limitBytes, err = cli.ParseBytes(ctx.String("package-bytes")); err != nil {
		return c, cli.Errorf(cli.Usage, "--package-bytes: %w", err)
	}
	if c.paceBytes, err = cli.ParseBytes(ctx.String("package-pace")); err != nil {
		return c, cli.Errorf(cli.Usage, "--package-pace: %w", err)
	}
	var who packages.Credentials
	if path := ctx.String("package-credentials"); path != "" {
		if who, err = packages.ReadCredentials(path); err != nil {
			return c, cli.Errorf(cli.Usage, "--package-credentials: %w", err)
		}
	}
	for _, text := range ctx.StringSlice("package-source") {
		source, err := packages.ParseSource(text, who)
		if err != nil {
			return c, cli.Errorf(cli.Usage, "--package-source: %w", err)
		}
		c.sources = append(c.sources, source)
	}
	switch c.listen = ctx.String("package-listen"); c.listen {
	case "none":
		c.listen = ""
	case "":
		// A borglet on a socket is reached by this machine alone.
		if host, _, err := net.SplitHostPort(listen); err == nil {
			c.listen = net.JoinHostPort(host, "0")
		}
	default:
		if _, _, err := net.SplitHostPort(c.listen); err != nil {
			return c, cli.Errorf(cli.Usage, "--package-listen: %w", err).Hint("for example: --package-listen 0.0.0.0:7102, or none")
		}
	}
	return c, nil
}

// open listens for other machines; nil: it is not to.
func (c *packageConfig) open(told func(err error)) (net.Listener, error) {
	if c.listen == "" {
		return nil, nil
	}
	l, err := door.Await(c.listen, told)
	if err != nil {
		return nil, cli.Errorf(cli.Failed, "listen for machines that fetch packages on %s: %w", c.listen, err).Hint("choose another address with --package-listen")
	}
	if _, is := l.Addr().(*net.TCPAddr); !is {
		return nil, errors.Join(cli.Errorf(cli.Usage, "--package-listen %q: want host:port or none", c.listen), l.Close())
	}
	return l, nil
}

// packageStore opens what the machine has of packages.
func (s *serve) packageStore() (*packages.Store, error) {
	store, err := packages.Open(packages.Config{
		Dir: filepath.Join(s.dir, "packages"), Sources: s.packages.sources, LimitBytes: s.packages.limitBytes, Log: s.log,
		Peers: door.BlobClient(s.source), ServeBytesPerS: s.packages.paceBytes,
	})
	if err != nil {
		return nil, cli.Errorf(cli.Failed, "%w", err).Hint("--package-bytes, --dir")
	}
	return store, nil
}

// portOf is the port that is listened on; 0: none is.
func portOf(l net.Listener) uint16 {
	if l == nil {
		return 0
	}
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

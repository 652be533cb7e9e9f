package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// socketHoards keep removed files in messages that nobody receives.
var socketHoards = map[string]func(dir string) error{
	// The first message of each of many sockets.
	"in many datagrams": func(dir string) error {
		for range 15 {
			if err := keepInPair(dir, unix.SOCK_DGRAM, hoardBytes/4); err != nil {
				return err
			}
		}
		return nil
	},
	"in a packet": func(dir string) error { return keepInPair(dir, unix.SOCK_SEQPACKET, hoardBytes) },
	// The receiving ends are open nowhere.
	"in connections not accepted": func(dir string) error { return keepInBacklog(dir, unix.SOCK_STREAM, 15) },
	"in packets not accepted":     func(dir string) error { return keepInBacklog(dir, unix.SOCK_SEQPACKET, 1) },
	// A look begins behind what is in it.
	"in a socket with a mark": func(dir string) error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(pair[1], unix.SOL_SOCKET, unix.SO_PEEK_OFF, 4096); err != nil {
			return err
		}
		return sendRemoved(pair[0], dir, hoardBytes)
	},
}

// hidingHoards move about what they keep, or keep nothing many times.
var hidingHoards = map[string]func(dir string) error{
	"from number to number": func(dir string) error {
		f, err := removedFile(dir)
		if err != nil {
			return err
		}
		from, to := int(f.Fd()), 5000
		for {
			if err := unix.Dup3(from, to, 0); err != nil {
				return err
			}
			unix.Close(from)
			from, to = to, from
		}
	},
	"from process to process": func(dir string) error {
		f, err := removedFile(dir)
		if err != nil {
			return err
		}
		script := filepath.Join(dir, "hop")
		if err := os.WriteFile(script, []byte("/bin/sh "+script+" &\n"), 0o600); err != nil {
			return err
		}
		hop := exec.Command("/bin/sh", script)
		hop.ExtraFiles = []*os.File{f}
		if err := hop.Run(); err != nil {
			return err
		}
		return f.Close()
	},
	// A file system has room for so many of them.
	"in empty files": func(dir string) error {
		for i := range 12_000 {
			if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600); err != nil {
				return err
			}
		}
		return nil
	},
	"in empty files without names": func(dir string) error {
		for range 12_000 {
			if _, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR, 0o600); err != nil {
				return err
			}
		}
		return nil
	},
}

// keepInPair sends a removed file into a pair of sockets, of which the receiving one stays.
func keepInPair(dir string, kind int, bytes int64) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, kind, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	return sendRemoved(pair[0], dir, bytes)
}

// keepInBacklog sends removed files over connections that nobody accepts.
func keepInBacklog(dir string, kind, connections int) error {
	listener, err := unix.Socket(unix.AF_UNIX, kind, 0)
	if err != nil {
		return err
	}
	// Hoarders on one machine may share its network, and so its abstract names.
	address := &unix.SockaddrUnix{Name: fmt.Sprintf("@hoard-%d", time.Now().UnixNano())}
	if err := unix.Bind(listener, address); err != nil {
		return err
	}
	if err := unix.Listen(listener, connections); err != nil {
		return err
	}
	for range connections {
		fd, err := unix.Socket(unix.AF_UNIX, kind, 0)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, address); err != nil {
			return err
		}
		if err := sendRemoved(fd, dir, hoardBytes/int64(connections)); err != nil {
			return err
		}
		unix.Close(fd)
	}
	return nil
}

func sendRemoved(socket int, dir string, bytes int64) error {
	f, err := removedFileOf(dir, bytes)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Sendmsg(socket, []byte{0}, unix.UnixRights(int(f.Fd())), nil, 0)
}

// removedFileOf is open, has no name, and takes so much of the disk.
func removedFileOf(dir string, bytes int64) (*os.File, error) {
	f, err := os.CreateTemp(dir, "removed")
	if err == nil {
		err = os.Remove(f.Name())
	}
	if err == nil {
		err = unix.Fallocate(int(f.Fd()), 0, 0, bytes)
	}
	return f, err
}

package container

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// maxRights is SCM_MAX_FD: how many files one message may carry.
	maxRights = 253
	// maxInFlightDepth bounds sockets on their way in sockets.
	maxInFlightDepth = 8
	// inFlightLooks is in how many looks in turn files may be on their way that cannot be
	// looked at, before they count as what cannot be measured.
	inFlightLooks = 3
	// maxWaitingMessage is how much of what waits in a socket is read at a time.
	maxWaitingMessage = 1 << 20
)

// A file that was sent over a local socket and not received yet is open in no process. The
// kernel says of a socket how many wait in it; those of its first message are seen without
// being taken. To see those of the next ones the socket's own mark has to be moved, from
// which on a look begins: that is done, and undone, while the copy stands still. Behind a
// connection that nobody accepted there is nothing to look at.

// socket looks at what waits in a socket of a process to be received.
func (w *heldWalk) socket(pid, tid int, name string) {
	n := waitingFiles(fmt.Sprintf("/proc/%d/task/%d/fdinfo/%s", pid, tid, name))
	if n == 0 || !w.root {
		return
	}
	number, err := strconv.Atoi(name)
	if err != nil {
		return
	}
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		w.copy.unseen = true
		return
	}
	defer unix.Close(p)
	fd, err := unix.PidfdGetfd(p, number, 0)
	if err != nil {
		w.copy.unseen = true
		return
	}
	defer unix.Close(fd)
	w.peek(fd, n, 0)
}

// waitingFiles is how many files wait in a socket, by what /proc says of it.
func waitingFiles(fdinfo string) int {
	text, err := os.ReadFile(fdinfo)
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text) {
		if after, ok := bytes.CutPrefix(line, []byte("scm_fds:")); ok {
			n, _ := strconv.Atoi(string(bytes.TrimSpace(after)))
			return n
		}
	}
	return 0
}

// peek counts the files that wait in a socket: of its first message, and of all if the copy
// stands still.
func (w *heldWalk) peek(fd, waiting, depth int) {
	from, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF)
	if err == nil && from < 0 && !w.copy.still {
		w.copy.unseen = w.peekMessage(fd, depth) < waiting || w.copy.unseen
		return
	}
	if err != nil || !w.copy.still || unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, 0) != nil {
		// While the copy works a look would move the mark that the copy has set.
		w.copy.unseen = true
		return
	}
	defer func() { _ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, from) }()
	for waiting > 0 {
		n := w.peekMessage(fd, depth)
		if n < 0 {
			w.copy.unseen = true
			return
		}
		waiting -= n
	}
}

// peekMessage counts the files of the next message, and returns how many there are; -1: there
// is no message, or not all of it is seen.
func (w *heldWalk) peekMessage(fd, depth int) (n int) {
	if w.message == nil {
		w.message = make([]byte, maxWaitingMessage)
	}
	control := make([]byte, unix.CmsgSpace(4*maxRights)+unix.CmsgSpace(unix.SizeofUcred))
	size, controlSize, flags, _, err := unix.Recvmsg(fd, w.message, control, unix.MSG_PEEK|unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		// Nobody has accepted the connection, or it was received just now.
		return -1
	}
	messages, err := unix.ParseSocketControlMessage(control[:controlSize])
	if err != nil {
		return -1
	}
	for i := range messages {
		files, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, f := range files {
			n++
			w.waitingFile(f, depth)
			unix.Close(f)
		}
	}
	if n == 0 && size == 0 || size == len(w.message) || flags&unix.MSG_CTRUNC != 0 {
		return -1
	}
	return n
}

// waitingFile counts a file that waited in a socket, and those that wait in it.
func (w *heldWalk) waitingFile(f, depth int) {
	own, err := unix.Open("/proc/self/fd", openDirectory, 0)
	if err != nil {
		w.copy.unseen = true
		return
	}
	defer unix.Close(own)
	name := strconv.Itoa(f)
	isSocket, err := w.file(own, name)
	switch inside := waitingFiles("/proc/self/fdinfo/" + name); {
	case err != nil || inside > 0 && depth >= maxInFlightDepth:
		w.copy.unseen = true
	case isSocket && inside > 0:
		w.peek(f, inside, depth+1)
	}
}

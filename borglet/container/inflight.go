package container

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// maxRights is SCM_MAX_FD, the most files that one message carries.
	maxRights = 253
	// maxInFlightDepth bounds how deep sockets in flight in sockets are followed.
	maxInFlightDepth = 8
	// inFlightLooks is the number of looks in a row with files in flight that could not be
	// seen, after which the copy counts as not measurable.
	inFlightLooks = 3
	// maxWaitingMessage bounds how much of one message is read, in bytes.
	maxWaitingMessage = 1 << 20
)

// A file that was sent over a Unix socket and not yet received is in flight: no process has it
// open. The kernel tells how many files are in flight in a socket (scm_fds in fdinfo).
// MSG_PEEK shows those of the first message. To see those of later messages, SO_PEEK_OFF must
// be set on the socket, which the copy could notice; that is done only while the copy is
// frozen, and undone. Connections that nobody has accepted cannot be peeked at.

// lookIntoSocket counts the files in flight in a socket of a process.
func (w *heldWalk) lookIntoSocket(pid, tid int, name string) {
	n := waitingFiles(fmt.Sprintf("/proc/%d/task/%d/fdinfo/%s", pid, tid, name))
	if n == 0 || !w.root {
		return
	}
	number, err := strconv.Atoi(name)
	if err != nil {
		return
	}
	fd, err := descriptorOf(tid, number)
	if err != nil {
		w.current.unseen = true
		return
	}
	defer unix.Close(fd)
	w.peek(fd, n, 0)
}

// waitingFiles returns the number of files in flight in a socket, from its fdinfo in /proc.
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

// peek counts the files in flight in a socket: those of the first message, or of all messages
// if the copy is frozen.
func (w *heldWalk) peek(fd, waiting, depth int) {
	from, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF)
	if err == nil && from < 0 && !w.current.frozen {
		w.current.unseen = w.peekMessage(fd, depth) < waiting || w.current.unseen
		return
	}
	if err != nil || !w.current.frozen || unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, 0) != nil {
		// The copy itself uses SO_PEEK_OFF, and peeking would advance it under a running copy.
		w.current.unseen = true
		return
	}
	defer func() { _ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, from) }()
	for waiting > 0 {
		n := w.peekMessage(fd, depth)
		if n < 0 {
			w.current.unseen = true
			return
		}
		waiting -= n
	}
}

// peekMessage counts the files of the next message and returns their number; -1 if there is no
// message or not all of it could be seen.
func (w *heldWalk) peekMessage(fd, depth int) (n int) {
	if w.message == nil {
		w.message = make([]byte, maxWaitingMessage)
	}
	control := make([]byte, unix.CmsgSpace(4*maxRights)+unix.CmsgSpace(unix.SizeofUcred))
	size, controlSize, flags, _, err := unix.Recvmsg(fd, w.message, control, unix.MSG_PEEK|unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		// Nobody has accepted the connection, or the message was received just now.
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

// waitingFile counts a file in flight and, if it is a socket, the files in flight in it.
func (w *heldWalk) waitingFile(f, depth int) {
	own, err := unix.Open("/proc/self/fd", openDirectory, 0)
	if err != nil {
		w.current.unseen = true
		return
	}
	defer unix.Close(own)
	name := strconv.Itoa(f)
	isSocket, err := w.countFile(own, name)
	if isSocket && w.sawSocket != nil {
		w.sawSocket(f)
	}
	switch inside := waitingFiles("/proc/self/fdinfo/" + name); {
	case err != nil || inside > 0 && depth >= maxInFlightDepth:
		w.current.unseen = true
	case isSocket && inside > 0:
		w.peek(f, inside, depth+1)
	}
}

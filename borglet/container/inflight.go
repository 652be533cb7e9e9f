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
)

// A file that was sent over a local socket and not received yet is open in no process. The
// kernel says of a socket how many wait in it; those of its first message are seen without
// being taken.

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
		w.unseen = true
		return
	}
	defer unix.Close(p)
	fd, err := unix.PidfdGetfd(p, number, 0)
	if err != nil {
		w.unseen = true
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

// peek counts the files of the first message that waits in a socket.
func (w *heldWalk) peek(fd, waiting, depth int) {
	one, control := make([]byte, 1), make([]byte, unix.CmsgSpace(4*maxRights))
	_, n, _, _, err := unix.Recvmsg(fd, one, control, unix.MSG_PEEK|unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		// Nobody has accepted the connection, or it was received just now.
		w.unseen = true
		return
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		w.unseen = true
		return
	}
	own, err := unix.Open("/proc/self/fd", openDirectory, 0)
	if err != nil {
		w.unseen = true
		return
	}
	defer unix.Close(own)
	seen := 0
	for i := range messages {
		files, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, f := range files {
			seen++
			name := strconv.Itoa(f)
			isSocket, err := w.file(own, name)
			if inside := waitingFiles("/proc/self/fdinfo/" + name); err == nil && isSocket && inside > 0 {
				if depth < maxInFlightDepth {
					w.peek(f, inside, depth+1)
				} else {
					w.unseen = true
				}
			}
			w.unseen = w.unseen || err != nil
			unix.Close(f)
		}
	}
	w.unseen = w.unseen || seen < waiting
}

// Package portholder names the process that listens on a TCP port of this machine, for people
// whose program cannot listen there. It reads /proc, and knows what this process may see there.
package portholder

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
)

// listening is the state of a socket that listens, in the kernel's tables.
const listening = "0A"

// Of returns the process that listens on a port, as "nginx (process 812)"; empty if none can be
// seen, as with a socket that is only bound.
func Of(port uint16) string {
	links := map[string]bool{}
	for _, table := range []string{"tcp", "tcp6"} {
		text, _ := os.ReadFile("/proc/thread-self/net/" + table)
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) >= 10 && f[3] == listening && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				links["socket:["+f[9]+"]"] = true
			}
		}
	}
	if len(links) == 0 {
		return ""
	}
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, file := range files {
		if target, err := os.Readlink(file); err == nil && links[target] {
			process := filepath.Dir(filepath.Dir(file))
			if pid, err := strconv.Atoi(filepath.Base(process)); err == nil {
				return fmt.Sprintf("%s (process %d)", name(process), pid)
			}
		}
	}
	return ""
}

// name returns a process's name, which is its own choice: what is not plain text is left out.
func name(process string) string {
	text, _ := os.ReadFile(filepath.Join(process, "comm"))
	return strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.TrimSpace(string(text)))
}

package plant

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// edit puts text around a piece of the source. \x00 stands for the mutant's number.
type edit struct {
	// Offsets of the piece's first byte and of the byte behind its last, in bytes.
	start, end    int
	before, after string
}

// Write returns the source of the file with those of the mutants in it that are
// the file's. Numbers are given by their index, from first on.
func Write(file *File, mutants []*Mutant, first int) []byte {
	var edits []edit
	for i, m := range mutants {
		if m.File != file.Name {
			continue
		}
		n := strconv.Itoa(first + i)
		for _, e := range m.edits {
			e.before, e.after = strings.ReplaceAll(e.before, "\x00", n), strings.ReplaceAll(e.after, "\x00", n)
			edits = append(edits, e)
		}
	}
	// Pieces are nodes of one tree: one holds the other, or they are apart. The
	// larger one is opened first and closed last; of equal ones the first in the list.
	open, shut := slices.Clone(edits), slices.Clone(edits)
	slices.SortStableFunc(open, func(a, b edit) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(b.end, a.end))
	})
	slices.Reverse(shut)
	slices.SortStableFunc(shut, func(a, b edit) int {
		return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(b.start, a.start))
	})
	var out strings.Builder
	at := 0
	copyTo := func(offset int) {
		out.Write(file.Text[at:offset])
		at = offset
	}
	for len(open) > 0 || len(shut) > 0 {
		// What ends here is closed before anything begins here.
		if len(open) == 0 || shut[0].end <= open[0].start {
			copyTo(shut[0].end)
			out.WriteString(shut[0].after)
			shut = shut[1:]
			continue
		}
		copyTo(open[0].start)
		out.WriteString(open[0].before)
		open = open[1:]
	}
	copyTo(len(file.Text))
	return []byte(out.String())
}

// HookFile is the name of the file of Hook in each package.
const HookFile = "mutation_hook.go"

// Variables by which a process is told what to do.
const (
	// NumberVar holds the number of the mutant that is on.
	NumberVar = "BORG_MUTATION"
	// SeenVar holds the path of a file of as many bytes as there are numbers. The
	// process sets the bytes of all mutants that it passes.
	SeenVar = "BORG_MUTATION_SEEN"
)

// Hook is the source of a file that each package with mutants needs. record says
// whether passed mutants are written down; that costs time.
func Hook(pkg string, record bool) []byte {
	if !record {
		return fmt.Appendf(nil, `package %s

import (
	mutationOS "os"
	mutationStrconv "strconv"
)

var mutationNumber, _ = mutationStrconv.Atoi(mutationOS.Getenv(%q))

func mutationIs(n int) bool { return n == mutationNumber }
`, pkg, NumberVar)
	}
	return fmt.Appendf(nil, `package %s

import (
	mutationOS "os"
	mutationSyscall "syscall"
)

var mutationSeen = func() []byte {
	f, err := mutationOS.OpenFile(mutationOS.Getenv(%q), mutationOS.O_RDWR, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	seen, err := mutationSyscall.Mmap(int(f.Fd()), 0, int(info.Size()), mutationSyscall.PROT_READ|mutationSyscall.PROT_WRITE, mutationSyscall.MAP_SHARED)
	if err != nil {
		return nil
	}
	return seen
}()

func mutationIs(n int) bool {
	if n < len(mutationSeen) && mutationSeen[n] == 0 {
		mutationSeen[n] = 1
	}
	return false
}
`, pkg, SeenVar)
}

package beneath

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// liar is told to a child that it shall say that much more is its environment.
const liar = "BORG_TEST_LIAR"

func TestMain(m *testing.M) {
	if os.Getenv(liar) != "" {
		lie()
	}
	os.Exit(m.Run())
}

// mmMap is struct prctl_mm_map of the kernel.
type mmMap struct {
	startCode, endCode, startData, endData, startBrk, brk, startStack uint64
	argStart, argEnd, envStart, envEnd                                uint64
	auxv                                                              uint64
	auxvSize, exeFD                                                   uint32
}

// lie has a gigabyte of this process be its environment, says so, and waits.
func lie() {
	text, err := os.ReadFile("/proc/self/stat")
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
	stat := func(n int) uint64 { v, _ := strconv.ParseUint(fields[n-3], 10, 64); return v }
	area, mapErr := unix.Mmap(-1, 0, 1<<30, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil || mapErr != nil {
		fmt.Println("no:", err, mapErr)
		os.Exit(0)
	}
	brk, _, _ := unix.Syscall(unix.SYS_BRK, 0, 0, 0)
	at := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(area))))
	m := mmMap{
		startCode: stat(26), endCode: stat(27), startStack: stat(28), startData: stat(45), endData: stat(46), startBrk: stat(47), brk: uint64(brk),
		argStart: at, argEnd: at + 1<<30, envStart: at, envEnd: at + 1<<30, exeFD: ^uint32(0),
	}
	if _, _, errno := unix.Syscall6(unix.SYS_PRCTL, unix.PR_SET_MM, unix.PR_SET_MM_MAP, uintptr(unsafe.Pointer(&m)), unsafe.Sizeof(m), 0, 0); errno != 0 {
		fmt.Println("no:", errno)
		os.Exit(0)
	}
	fmt.Println("yes")
	_, _ = os.Stdin.Read(make([]byte, 1))
	os.Exit(0)
}

// TestReadProcIsBounded: a process that says that a gigabyte is its environment costs who
// looks at it no gigabyte.
func TestReadProcIsBounded(t *testing.T) {
	child := exec.Command(os.Args[0])
	child.Env = []string{liar + "=1"}
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer in.Close()
	said := make([]byte, 100)
	n, err := out.Read(said)
	if err != nil || !strings.HasPrefix(string(said[:n]), "yes") {
		t.Skipf("this kernel does not let a process say so: %s %v", said[:n], err)
	}
	for _, name := range []string{"environ", "cmdline"} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		text, err := ReadProc(fmt.Sprintf("/proc/%d", child.Process.Pid), name)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; err != nil || len(text) != maxProcBytes || took > 8*maxProcBytes {
			t.Errorf("%s: %d bytes, %v; %d bytes were allocated", name, len(text), err, took)
		}
	}
}

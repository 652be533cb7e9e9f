package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The commands of the page that would reach beyond the namespaces have stand-ins:
// this program under their names. systemctl starts what the unit says, as the user
// and within the bounds it says; scp and curl reach the other namespaces.
var standIns = map[string]func(args []string) error{"systemctl": systemctl, "scp": scp, "curl": curl, "supervise": supervise}

// modeVar is set in the processes that the test starts of itself.
const modeVar = "BORG_INSTALL_MODE"

func TestMain(m *testing.M) {
	standIn := standIns[filepath.Base(os.Args[0])]
	switch mode := os.Getenv(modeVar); {
	case mode == "init":
		os.Exit(initProcess())
	case mode == "walk" && standIn != nil:
		if err := standIn(os.Args[1:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// initProcess is process 1 of the namespaces: it starts the walk, and collects
// what is orphaned. When it ends, the kernel ends all that is left.
func initProcess() int {
	if err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""),
	); err != nil {
		fmt.Fprintln(os.Stderr, "make the namespaces private:", err)
		return 1
	}
	os.Setenv(modeVar, "walk")
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	walk, err := syscall.ForkExec(exe, os.Args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		var status syscall.WaitStatus
		if pid, err := syscall.Wait4(-1, &status, 0, nil); err == nil && pid == walk {
			if status.Exited() {
				return status.ExitStatus()
			}
			fmt.Fprintln(os.Stderr, "the walk ended by", status.Signal())
			return 1
		}
	}
}

const unitDir = "/etc/systemd/system"

func superviseFile(unit string) string { return filepath.Join("/run", unit+".supervisor") }

// systemctl is as much of it as the page uses.
func systemctl(args []string) error {
	now := slices.Contains(args, "--now")
	args = slices.DeleteFunc(args, func(a string) bool { return a == "--now" })
	if slices.Equal(args, []string{"daemon-reload"}) {
		units, err := filepath.Glob(unitDir + "/borg*.service")
		for _, path := range units {
			_, e := readUnit(path)
			err = errors.Join(err, e)
		}
		return err
	}
	if len(args) != 2 {
		return fmt.Errorf("no such command here: %q", args)
	}
	unit := strings.TrimSuffix(args[1], ".service")
	if _, err := os.Stat(filepath.Join(unitDir, unit+".service")); err != nil {
		return err
	}
	switch {
	case args[0] == "start", args[0] == "enable" && now:
		return startUnit(unit)
	case args[0] == "stop", args[0] == "disable" && now:
		return stopUnit(unit)
	case args[0] == "restart":
		return errors.Join(stopUnit(unit), startUnit(unit))
	}
	return fmt.Errorf("no such command here: %q", args)
}

func startUnit(unit string) error {
	if _, err := os.Stat(superviseFile(unit)); err == nil {
		return nil
	}
	log, err := os.OpenFile(filepath.Join("/var/log", unit), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe, unit)
	cmd.Args[0] = "supervise"
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return os.WriteFile(superviseFile(unit), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
}

// stopUnit returns when the unit's supervisor has ended, as systemctl does.
func stopUnit(unit string) error {
	data, err := os.ReadFile(superviseFile(unit))
	if err != nil {
		return nil
	}
	pid, err := strconv.Atoi(string(data))
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("unit %s: %w", unit, err)
	}
	for syscall.Kill(pid, 0) == nil {
		time.Sleep(10 * time.Millisecond)
	}
	return os.Remove(superviseFile(unit))
}

// supervise runs one unit until SIGTERM. What it started is below it, also when
// orphaned, as it would be in the unit's cgroup.
func supervise(args []string) error {
	u, err := readUnit(filepath.Join(unitDir, args[0]+".service"))
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	for {
		main, err := u.start()
		if err != nil {
			return err
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for pid := 0; pid != main; {
				pid, _ = syscall.Wait4(-1, nil, 0, nil)
			}
		}()
		stopping := false
		select {
		case <-ended:
		case <-stop:
			stopping = true
			_ = syscall.Kill(main, syscall.SIGTERM)
			select {
			case <-ended:
			case <-time.After(u.seconds("TimeoutStopSec", 90)):
				fmt.Println("systemd stand-in: did not stop in time, killed")
				_ = syscall.Kill(main, syscall.SIGKILL)
				<-ended
			}
		}
		if u.service("KillMode") != "process" {
			killBelow(os.Getpid())
		}
		if stopping || u.service("Restart") != "always" {
			return nil
		}
		fmt.Println("systemd stand-in: ended by itself, started again")
		time.Sleep(u.seconds("RestartSec", 0))
	}
}

// killBelow kills all descendants of a process.
func killBelow(root int) {
	for again := true; again; {
		again = false
		parents := make(map[int]int)
		for _, p := range processes() {
			parents[p.pid] = p.parent
		}
		for pid := range parents {
			above := parents[pid]
			for above != root && above > 1 {
				above = parents[above]
			}
			if above == root && pid != root {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				again = true
			}
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}

// start starts the unit's program as the unit says, and returns its pid.
func (u *unit) start() (int, error) {
	var words []string
	if user := u.service("User"); user != "" {
		words = append(words, "setpriv", "--reuid", user, "--regid", u.service("Group"), "--init-groups")
		if u.service("NoNewPrivileges") == "yes" {
			words = append(words, "--no-new-privs")
		}
		if caps, ok := u.values["Service"]["CapabilityBoundingSet"]; ok && caps[0] == "" {
			words = append(words, "--bounding-set", "-all", "--inh-caps", "-all")
		}
		words = append(words, "--")
	}
	if dir := u.service("RuntimeDirectory"); dir != "" {
		mode, err := strconv.ParseUint(u.service("RuntimeDirectoryMode"), 8, 32)
		if err != nil {
			return 0, fmt.Errorf("RuntimeDirectoryMode: %w", err)
		}
		// It is a new one at each start.
		dir = filepath.Join("/run", dir)
		if out, err := exec.Command("install", "-d", "-o", u.service("User"), "-m", fmt.Sprintf("%o", mode), dir).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("make %s: %w: %s", dir, err, out)
		}
	}
	words = append(words, strings.Fields(u.service("ExecStart"))...)
	// As far as the limit of the whole test allows.
	script := "ulimit -n " + u.service("LimitNOFILE") + " 2>/dev/null || ulimit -n $(ulimit -H -n); umask " + u.service("UMask") + "; "
	if u.service("ProtectSystem") == "strict" {
		script += readOnly(strings.Fields(u.service("ReadWritePaths")))
		words = append([]string{"unshare", "--mount", "--propagation", "private", "--", "sh", "-euc", script + `exec "$@"`, "sh"}, words...)
	} else {
		words = append([]string{"sh", "-euc", script + `exec "$@"`, "sh"}, words...)
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	return cmd.Process.Pid, nil
}

// readOnly is a script that makes the machine read-only but for /run, whose unit's
// own directory may be written, and for paths.
func readOnly(paths []string) string {
	var b strings.Builder
	for _, dir := range []string{"/usr", "/etc", "/var/lib", "/home"} {
		fmt.Fprintf(&b, "mount --rbind %[1]s %[1]s; ", dir)
	}
	for _, p := range paths {
		fmt.Fprintf(&b, "mount --bind %[1]s %[1]s; ", p)
	}
	for _, dir := range []string{"/usr", "/etc", "/var/lib", "/home"} {
		fmt.Fprintf(&b, "mount -o remount,bind,ro %s; ", dir)
	}
	return b.String()
}

// scp copies files to root's directory, or another, on another machine.
func scp(args []string) error {
	flags := 0
	for ; flags < len(args) && strings.HasPrefix(args[flags], "-"); flags++ {
	}
	from, to := args[flags:len(args)-1], args[len(args)-1]
	addr, dir, ok := strings.Cut(strings.TrimPrefix(to, "root@"), ":")
	if !ok || len(from) == 0 {
		return fmt.Errorf("want FILE... root@ADDRESS:[PATH], got %q", args)
	}
	holder, err := os.ReadFile(filepath.Join(os.Getenv("BORG_INSTALL_HOSTS"), addr))
	if err != nil {
		return fmt.Errorf("no route to %s: %w", addr, err)
	}
	for _, path := range from {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dest := filepath.Join(os.Getenv("HOME"), filepath.Base(path))
		if dir != "" {
			dest = dir
		}
		cmd := exec.Command("nsenter", "--target", string(holder), "--mount", "--", "install", "-m", fmt.Sprintf("%o", info.Mode().Perm()), "/dev/stdin", dest)
		cmd.Stdin = bytes.NewReader(data)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s to %s: %w: %s", path, to, err, out)
		}
	}
	return nil
}

// curl gets one page.
func curl(args []string) error {
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Get(args[len(args)-1])
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

type process struct{ pid, parent int }

// processes are those of this namespace.
func processes() []process {
	var all []process
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		// The name may hold anything; the state and the parent follow it.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		pid, _ := strconv.Atoi(filepath.Base(dir))
		parent, _ := strconv.Atoi(fields[1])
		all = append(all, process{pid, parent})
	}
	return all
}

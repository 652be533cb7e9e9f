package borglet

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// Places are the directories a launch is made for.
type Places struct {
	// Dir is the copy's directory on the machine.
	Dir string
	// AllocDir is the directory shared by the tasks of its alloc.
	AllocDir string
	// Machine is the borglet's name.
	Machine string
	// OwnFiles: as in Capabilities.
	OwnFiles bool
	// Papers is the copy's directory of papers on the machine; empty: it has none.
	Papers string
	// Path is the search path of the machine, for tasks that see its files.
	Path string
	// Network is the copy's own; its zero value: the machine's.
	Network Network
	// Volume is where a volume is on the machine; needed by tasks with volumes.
	Volume func(VolumeID) string
}

// AllocPath is where a task with a file system of its own sees the directory of its alloc.
const AllocPath = "/alloc"

// taskSubdir is the part of a copy's directory that belongs to the task.
const taskSubdir = "task"

// NewLaunch binds the late names of a spec ({{task.index}}, {{port.http}}, ...)
// and sets the environment. An error lies in the spec: the task cannot be
// started anywhere as it is.
func NewLaunch(d *borgrpc.Desired, run uint32, p Places) (*Launch, error) {
	id, err := IDOf(d.GetCopy())
	if err != nil {
		return nil, err
	}
	spec := d.GetSpec()
	l := &Launch{
		ID:     id,
		Run:    run,
		Dir:    p.Dir,
		Rootfs: spec.GetRootfs(),

		AllCalls:   spec.GetRelax().GetSystemCalls(),
		MachineIDs: spec.GetRelax().GetUserIds(),

		Hostname: hostname(d.GetJob(), id.Index),
		Limits:   limitsOf(spec, batchClass(d)),
		OOMScore: oomScore(d.GetPriority()),
		Papers:   p.Papers,
		Ports:    d.GetPorts(),
		Network:  p.Network.Space,
		OwnCPUs:  ownCPUs(d),
	}
	if d.GetAlloc() != "" {
		l.Alloc = AllocName(d.GetAlloc())
		l.AllocDir = p.AllocDir
		l.AllocLimits = allocLimitsOf(d)
	}
	for _, m := range spec.GetMounts() {
		l.Mounts = append(l.Mounts, LaunchMount{Source: m.GetSource(), Path: m.GetPath(), Writable: m.GetWritable()})
	}
	for _, v := range VolumesOf(d) {
		l.Mounts = append(l.Mounts, LaunchMount{Source: p.Volume(v.ID), Path: v.Path, Writable: true, Volume: v.ID.Name})
	}
	names := newNames(d, id, p)
	if l.Args, err = names.bindAll("args", spec.GetArgs()); err != nil {
		return nil, err
	}
	if len(l.Args) == 0 || l.Args[0] == "" {
		return nil, fmt.Errorf("the task has no args; give at least the path of a program")
	}
	if l.Cwd, err = names.bind("cwd", spec.GetCwd()); err != nil {
		return nil, err
	}
	if l.Cwd == "" {
		l.Cwd = names["task.dir"]
	}
	if !filepath.IsAbs(l.Cwd) {
		return nil, fmt.Errorf("cwd %q is not absolute; give a path that starts with /", l.Cwd)
	}
	l.Env, err = environment(d, id, p, names)
	return l, err
}

// allocPattern is "<user>/<name>/<index>". It becomes part of paths, so nothing
// else is let in.
var allocPattern = regexp.MustCompile(`^[a-z0-9-]{1,63}/[a-z0-9-]{1,63}/[0-9]{1,10}$`)

func checkAlloc(alloc string) error {
	if alloc != "" && !allocPattern.MatchString(alloc) {
		return fmt.Errorf("alloc %q: want <user>/<name>/<index>", alloc)
	}
	return nil
}

// AllocName makes one path element of "<user>/<name>/<index>". Users and names
// are DNS labels and have no dots.
func AllocName(alloc string) string { return strings.ReplaceAll(alloc, "/", ".") }

// names are the late-bound names of one run.
type names map[string]string

func newNames(d *borgrpc.Desired, id ID, p Places) names {
	n := names{
		"cell":         d.GetCell(),
		"job.name":     d.GetJob(),
		"job.user":     d.GetUser(),
		"task.index":   strconv.FormatUint(uint64(id.Index), 10),
		"task.attempt": strconv.FormatUint(id.Attempt, 10),
		"task.dir":     filepath.Join(p.Dir, taskSubdir),
		"machine.name": p.Machine,
	}
	if p.OwnFiles {
		n["task.dir"] = "/task"
	}
	if p.Papers != "" {
		n["task.files"] = filepath.Join(p.Papers, FilesPapers)
		if p.OwnFiles {
			n["task.files"] = filepath.Join(PapersPath, FilesPapers)
		}
	}
	if d.GetAlloc() != "" {
		n["alloc.dir"] = p.AllocDir
		if p.OwnFiles {
			n["alloc.dir"] = AllocPath
		}
	}
	for _, v := range VolumesOf(d) {
		n["volume."+v.ID.Name] = p.Volume(v.ID)
		if p.OwnFiles {
			n["volume."+v.ID.Name] = v.Path
		}
	}
	for i, name := range d.GetSpec().GetPorts() {
		if i < len(d.GetPorts()) {
			n["port."+name] = strconv.FormatUint(uint64(d.GetPorts()[i]), 10)
		}
	}
	return n
}

// lateName matches what looks like one of our names. Other things in double
// braces belong to the program and are left alone.
var lateName = regexp.MustCompile(`\{\{ *((?:task|port|volume|alloc|job|machine)\.[a-zA-Z0-9_-]+|cell) *\}\}`)

func (n names) bind(field, s string) (string, error) {
	var unknown string
	bound := lateName.ReplaceAllStringFunc(s, func(m string) string {
		name := lateName.FindStringSubmatch(m)[1]
		value, ok := n[name]
		if !ok && unknown == "" {
			unknown = name
		}
		return value
	})
	switch {
	case unknown == "alloc.dir":
		return "", fmt.Errorf("%s: {{alloc.dir}} in a task that runs in no alloc; name an alloc_set in the job", field)
	case unknown != "":
		known := slices.Sorted(maps.Keys(n))
		return "", fmt.Errorf("%s: nothing is called {{%s}} here; the names are %s", field, unknown, strings.Join(known, ", "))
	}
	return bound, nil
}

func (n names) bindAll(field string, list []string) ([]string, error) {
	out := make([]string, len(list))
	for i, s := range list {
		var err error
		if out[i], err = n.bind(fmt.Sprintf("%s[%d]", field, i), s); err != nil {
			return nil, err
		}
	}
	return out, nil
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment is, from weak to strong: what every program expects, the spec's,
// and what Borg says (a task cannot be told a wrong port).
func environment(d *borgrpc.Desired, id ID, p Places, n names) ([]string, error) {
	env := map[string]string{
		"PATH": defaultPath,
		"HOME": n["task.dir"],
	}
	if !p.OwnFiles && p.Path != "" {
		env["PATH"] = p.Path
	}
	for key, value := range d.GetSpec().GetEnv() {
		bound, err := n.bind("env "+key, value)
		if err != nil {
			return nil, err
		}
		env[key] = bound
	}
	env["BORG_CELL"] = d.GetCell()
	env["BORG_USER"] = d.GetUser()
	env["BORG_JOB"] = d.GetUser() + "/" + d.GetJob()
	env["BORG_TASK"] = fmt.Sprintf("%s/%s/%d", d.GetUser(), d.GetJob(), id.Index)
	env["BORG_TASK_INDEX"] = n["task.index"]
	env["BORG_KIND"] = kindWord(d.GetKind())
	env["BORG_ATTEMPT"] = n["task.attempt"]
	env["BORG_MACHINE"] = p.Machine
	env["BORG_TASK_DIR"] = n["task.dir"]
	if p.Network.Addr != "" {
		env["BORG_ADDR"] = p.Network.Addr
	}
	if dir, ok := n["alloc.dir"]; ok {
		env["BORG_ALLOC_DIR"] = dir
	}
	for _, v := range VolumesOf(d) {
		env["BORG_VOLUME_"+portVariable(v.ID.Name)] = n["volume."+v.ID.Name]
	}
	if p.Papers != "" {
		at := filepath.Join(p.Papers, currentPapers)
		if p.OwnFiles {
			at = filepath.Join(PapersPath, currentPapers)
		}
		env["BORG_TASK_FILE"] = filepath.Join(filepath.Dir(at), TaskPaper)
		env["BORG_STOP"] = filepath.Join(filepath.Dir(at), NoticePaper)
		env["BORG_IDENTITY"] = filepath.Join(at, IdentityPaper)
		env["BORG_CERT"] = filepath.Join(at, CertPaper)
		env["BORG_KEY"] = filepath.Join(at, KeyPaper)
		env["BORG_CA"] = filepath.Join(at, CAPaper)
		env["BORG_CELL_FILE"] = filepath.Join(at, CellPaper)
		if len(d.GetSpec().GetFiles()) > 0 {
			env["BORG_FILES"] = n["task.files"]
		}
		if len(d.GetSpec().GetSecrets()) > 0 {
			env["BORG_SECRETS"] = filepath.Join(at, SecretPapers)
		}
	}
	for i, name := range d.GetSpec().GetPorts() {
		port, ok := n["port."+name]
		if !ok {
			return nil, fmt.Errorf("port %s was not granted: %d of %d ports came with the task", name, len(d.GetPorts()), len(d.GetSpec().GetPorts()))
		}
		if i == 0 {
			env["PORT"] = port
		}
		env["PORT_"+portVariable(name)] = port
	}
	for _, g := range d.GetDevices() {
		if g.GetName() == borgpb.ExclusiveCPU {
			// The kernel tells it which processors these are.
			continue
		}
		numbers := make([]string, len(g.GetNumbers()))
		for i, n := range g.GetNumbers() {
			numbers[i] = strconv.FormatUint(uint64(n), 10)
		}
		env["DEVICE_"+portVariable(g.GetName())] = strings.Join(numbers, ",")
	}
	list := make([]string, 0, len(env))
	for _, key := range slices.Sorted(maps.Keys(env)) {
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.Contains(env[key], "\x00") {
			return nil, fmt.Errorf("environment variable %q: a name is not empty and has no =, and neither name nor value has a zero byte", key)
		}
		list = append(list, key+"="+env[key])
	}
	return list, nil
}

func portVariable(name string) string {
	return strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(name))
}

func hostname(job string, index uint32) string {
	suffix := "-" + strconv.FormatUint(uint64(index), 10)
	return job[:min(len(job), 63-len(suffix))] + suffix
}

// allocLimitsOf is what all in the alloc of a copy may use together.
func allocLimitsOf(d *borgrpc.Desired) Limits {
	return Limits{CPUMilli: d.GetAllocResources().GetCpuMilli(), MemBytes: d.GetAllocResources().GetMemBytes()}
}

// limitsOf: by default a task may use idle processor time above its limit, and
// never memory (paper §6.2). What its secrets and files may take of that is not in its
// cgroup, since the borglet writes them: the rest is the limit of that.
func limitsOf(spec *borgpb.TaskSpec, batch bool) Limits {
	mem := spec.GetResources().GetMemBytes()
	if mem > 0 {
		mem = max(mem-spec.PaperBytes(), 1)
	}
	return Limits{
		Batch:    batch,
		CPUMilli: spec.GetResources().GetCpuMilli(),
		CPUHard:  spec.GetCpuSlack() == borgpb.Slack_SLACK_OFF,
		MemBytes: mem,
		MemSoft:  spec.GetMemSlack() == borgpb.Slack_SLACK_ON,
	}
}

// batchClass: nobody waits for what the task does. Who does not say serves requests
// if it is of a service.
func batchClass(d *borgrpc.Desired) bool {
	switch d.GetSpec().GetAppClass() {
	case borgpb.AppClass_APP_CLASS_BATCH:
		return true
	case borgpb.AppClass_APP_CLASS_LATENCY_SENSITIVE:
		return false
	}
	return d.GetKind() == borgpb.JobKind_JOB_KIND_BATCH || d.GetKind() == borgpb.JobKind_JOB_KIND_CRON
}

// oomScore makes the kernel take the lowest band first when the machine itself
// runs out of memory (paper §6.2: lowest priority first).
func oomScore(priority int32) int {
	switch {
	case priority >= 360:
		return 100
	case priority >= 120:
		return 200
	case priority >= 116:
		return 500
	case priority >= 100:
		return 700
	default:
		return 900
	}
}

package container

import "testing"

// TestKilledOf: of the kernel's records those of one cgroup are read, whatever the
// processes call themselves.
func TestKilledOf(t *testing.T) {
	oom := func(group, name, pid string) string {
		return "6,1000,4254519286,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=/borg/m1,task_memcg=" +
			group + ",task=" + name + ",pid=" + pid + ",uid=1879113728\n SUBSYSTEM=x\n"
	}
	killed := func(name, pid string) string {
		return "3,1001,4254519340,-;Memory cgroup out of memory: Killed process " + pid + " (" + name +
			") total-vm:99452kB, anon-rss:96kB, file-rss:4kB, shmem-rss:28kB, UID:1 pgtables:240kB oom_score_adj:200\n"
	}
	const group = "/borg/m1/1-2-0.0.1"
	records := []string{
		oom("/docker/x"+group, "tail", "7"), killed("tail", "7"),
		oom("/borg/m2/1-2-0.0.1", "other", "8"), killed("other", "8"),
		oom(group, "a,pid=8,uid=0", "9"), killed("a) total-vm:1kB, anon-rss:9kB (", "9"),
		oom(group, "lost", "10"), oom(group, "x", "11"), killed("\x1bx", "11"),
	}
	want := []oomKills{{process: "tail", bytes: 128 << 10}, {process: "a) total-vm:1kB, anon-rss:9kB (", bytes: 128 << 10}, {process: "x", bytes: 128 << 10}}
	got := killedOf(records, group)
	if len(got) != len(want) {
		t.Fatalf("killedOf = %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("kill %d is %+v, want %+v", i, got[i], want[i])
		}
	}
	if got := copyOfGroup("/sys/fs/cgroup/memory" + group); got != group {
		t.Errorf("copyOfGroup = %s, want %s", got, group)
	}
}

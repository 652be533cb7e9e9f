package plan_test

import (
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/fauxmaster/plan"
	"borg/fauxmaster/trace"
	"borg/scheduler"
)

// TestWhatRunsThereRunsHere imports pods that run where the rules of a cell, or of their own
// cluster, would not put them now. Each is on its node, and stays when the cell rests.
func TestWhatRunsThereRunsHere(t *testing.T) {
	const cluster = `{"items": [
 {"kind": "Node", "metadata": {"name": "n1", "labels": {"pool": "new", "gen": "1"}}, "spec": {"unschedulable": true, "taints": [{"key": "going", "effect": "NoExecute"}, {"key": "db", "effect": "NoSchedule"}]},
  "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "1Gi", "nvidia.com/gpu": "0"}}},
 {"kind": "Node", "metadata": {"name": "n2", "labels": {"gen": "1"}}, "status": {"allocatable": {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "1"}}},
 {"kind": "Node", "metadata": {"name": "n3"}, "spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}, "status": {"allocatable": {"cpu": "8", "memory": "16Gi"}, "conditions": [{"type": "Ready", "status": "Unknown"}]}},
 {"kind": "Pod", "metadata": {"name": "silent", "namespace": "x"}, "spec": {"nodeName": "n3", "containers": [{"resources": {"requests": {"cpu": "1"}}}],
  "tolerations": [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]}, "status": {"phase": "Running"}},
 {"kind": "Pod", "metadata": {"name": "relabelled", "namespace": "x"}, "spec": {"nodeName": "n1", "nodeSelector": {"pool": "old"}, "containers": [{"resources": {"requests": {"cpu": "1"}}}]}, "status": {"phase": "Running"}},
 {"kind": "Pod", "metadata": {"name": "lists", "namespace": "x"}, "spec": {"nodeName": "n1", "containers": [{"resources": {"requests": {"cpu": "100m"}}}], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
  {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a", "b"]}, {"key": "cores", "operator": "Gt", "values": ["7"]}, {"key": "gen", "operator": "DoesNotExist"}]}]}}}}, "status": {"phase": "Running"}},
 {"kind": "Pod", "metadata": {"name": "either", "namespace": "x"}, "spec": {"nodeName": "n1", "containers": [{"resources": {"requests": {"cpu": "100m"}}}], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
  {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}, {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b"]}]}]}}}}, "status": {"phase": "Running"}},
 {"kind": "Pod", "metadata": {"name": "fat", "namespace": "x"}, "spec": {"nodeName": "n1", "containers": [{"resources": {"requests": {"cpu": "6", "memory": "32Gi", "ephemeral-storage": "20Gi", "nvidia.com/gpu": "2"}}}]}, "status": {"phase": "Running"}},
 {"kind": "Pod", "metadata": {"name": "db-0", "namespace": "x", "labels": {"app": "db"}, "ownerReferences": [{"kind": "StatefulSet", "name": "db", "controller": true}]}, "spec": {"nodeName": "n2", "containers": [{"ports": [{"hostPort": 5432}]}],
  "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "gen"}]}}}, "status": {"phase": "Running"}},
 {"kind": "Pod", "metadata": {"name": "db-1", "namespace": "x", "labels": {"app": "db"}, "ownerReferences": [{"kind": "StatefulSet", "name": "db", "controller": true}]}, "spec": {"nodeName": "n2", "containers": [{"ports": [{"hostPort": 5432}]}],
  "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "gen"}]}}}, "status": {"phase": "Running"}},
 {"kind": "Pod", "metadata": {"name": "agent-1", "namespace": "x", "ownerReferences": [{"kind": "DaemonSet", "name": "agent", "controller": true}]}, "spec": {"nodeName": "n1", "nodeSelector": {"agent": "yes"}, "containers": [{}],
  "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}]}, "status": {"phase": "Running"}}
]}`
	k := trace.NewKubernetes(trace.KubernetesLabels{})
	if err := k.Read("cluster.json", strings.NewReader(cluster)); err != nil {
		t.Fatal(err)
	}
	from, err := k.Cell()
	if err != nil {
		t.Fatal(err)
	}
	c, made, err := plan.Make("k", 1e18, from, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(made.Misplaced)+len(made.Refused)+made.Strangers != 0 || made.Unsuited != 3 {
		t.Errorf("%+v; want three that do not suit their machine, and none that waits or is refused", made)
	}
	m, err := plan.New(c, scheduler.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for task, want := range map[string]string{"relabelled/0": "n1", "lists/0": "n1", "either/0": "n1", "fat/0": "n1", "silent/0": "n3", "db/0": "n2", "db/1": "n2"} {
			name, _, _ := strings.Cut(task, "/")
			j := c.Job(cell.JobKey{User: "x", Name: name})
			index := uint32(task[len(task)-1] - '0')
			if p := j.Task(index).Current(); p == nil || p.Machine().Name() != want || p.Attempt() != 1 {
				t.Errorf("%s is %v, want it on %s", task, j.Task(index).State(), want)
			}
		}
		if pending, running, _ := c.Job(cell.JobKey{User: "x", Name: "agent"}).Counts(); pending != 0 && running == 0 {
			t.Errorf("the daemon waits on %d machines and runs on %d", pending, running)
		}
		if err := m.Rest(); err != nil {
			t.Fatal(err)
		}
	}
	if v, ok := c.Machine("n1").Attribute("pool"); !ok || v != "new" {
		t.Errorf("the label of n1 is %q, %v; want it as it was", v, ok)
	}
	if n := c.Machine("n1").Capacity(); n.CPUMilli != 2000 || n.DiskBytes != 1<<30 {
		t.Errorf("n1 has %v, want what it says", n)
	}
}

// TestDrainedNodesKeepTheirs: what runs on a node that is being drained runs on here.
func TestDrainedNodesKeepTheirs(t *testing.T) {
	const cluster = `[{"ID": "n1", "Name": "n1", "Status": "ready", "SchedulingEligibility": "ineligible", "Drain": true, "NodeResources": {"Cpu": {"CpuShares": 100}, "Memory": {"MemoryMB": 100}}}]
[{"ID": "web", "Type": "service", "Status": "running", "TaskGroups": [{"Name": "g", "Count": 1, "Constraints": [{"LTarget": "${attr.arch}", "RTarget": "arm64", "Operand": "="}], "Tasks": [{"Name": "t", "Resources": {"CPU": 500, "MemoryMB": 64}}]}]}]
[{"ID": "a", "JobID": "web", "TaskGroup": "g", "NodeID": "n1", "ClientStatus": "running", "DesiredStatus": "run", "Resources": {"CPU": 500, "MemoryMB": 64}}]`
	n := trace.NewNomad()
	if err := n.Read("nomad.json", strings.NewReader(cluster)); err != nil {
		t.Fatal(err)
	}
	from, err := n.Cell()
	if err != nil {
		t.Fatal(err)
	}
	if _, made, err := plan.Make("n", 1e18, from, nil); err != nil || made.Running != 1 || made.Pending != 0 || made.Unsuited != 1 {
		t.Errorf("%+v, %v; want the allocation to run", made, err)
	}
}

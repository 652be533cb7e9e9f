package trace

import (
	"encoding/json"
	"fmt"
	"slices"
)

// What becomes of a field of a foreign object. The table in docs/import.md has the same
// rows; a test holds them together.
const (
	// Mapped: it becomes something of ours; what of it does not is counted by itself.
	fieldMapped = "mapped"
	// Lost: it changes what is asked for, where it may run or what it is, and nothing of
	// ours says so. It is counted, as a field that is not known is.
	fieldLost = "counted as lost"
	// Aside: it changes none of these.
	fieldAside = "changes none of it"
)

// field is one row of the table.
type field struct {
	name, fate string
	// words say what it becomes, or what is lost.
	words string
}

// object is where fields stand in one kind of foreign object.
type object struct {
	name   string
	fields []field
}

// asides are fields that change nothing here.
func asides(names ...string) (all []field) {
	for _, name := range names {
		all = append(all, field{name, fieldAside, ""})
	}
	return all
}

var (
	podSpec = object{"Pod `spec`", slices.Concat([]field{
		{"nodeName", fieldMapped, "the machine"},
		{"containers", fieldMapped, "the sum of their requests"},
		{"initContainers", fieldMapped, "the largest, or beside the others"},
		{"overhead", fieldMapped, "added to the request"},
		{"nodeSelector", fieldMapped, "constraints"},
		{"affinity", fieldMapped, "constraints, `max_per_machine`, `max_per_power`"},
		{"tolerations", fieldMapped, "tolerations"},
		{"priority", fieldMapped, "priority"},
		{"priorityClassName", fieldMapped, "priority, where none is given"},
		{"preemptionPolicy", fieldMapped, "`preempt`"},
		{"schedulerName", fieldMapped, "ours places it; counted"},
		{"topologySpreadConstraints", fieldMapped, "counted: a job is spread anyhow"},
		{"schedulingGates", fieldMapped, "counted: it may be placed"},
		{"volumes", fieldMapped, "claims are counted: where they can be is not looked at"},
		{"resources", fieldLost, "what the pod asks for as a whole"},
		{"resourceClaims", fieldLost, "devices that it claims"},
		{"activeDeadlineSeconds", fieldLost, "it ends after that time"},
		{"hostNetwork", fieldLost, "it has the ports of its machine"},
		{"os", fieldLost, "the operating system it needs"},
		{"runtimeClassName", fieldLost, "the runtime it needs, which nodes may select by label"},
		{"schedulingGroup", fieldLost, "it is placed with others"},
		{"workloadRef", fieldLost, "it is placed with others"},
	}, asides("automountServiceAccountToken", "dnsConfig", "dnsPolicy", "enableServiceLinks", "ephemeralContainers", "hostAliases", "hostIPC", "hostPID",
		"hostUsers", "hostname", "hostnameOverride", "imagePullSecrets", "readinessGates", "restartPolicy", "securityContext", "serviceAccount", "serviceAccountName",
		"setHostnameAsFQDN", "shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds"))}
	nodeSpec = object{"Node `spec`", slices.Concat([]field{
		{"taints", fieldMapped, "taints"},
		{"unschedulable", fieldMapped, "a taint"},
	}, asides("configSource", "externalID", "podCIDR", "podCIDRs", "providerID"))}
	nodeStatus = object{"Node `status`", slices.Concat([]field{
		{"allocatable", fieldMapped, "capacity; the limit of pods is counted"},
		{"capacity", fieldMapped, "capacity, where nothing is allocatable"},
		{"conditions", fieldMapped, "down, if not ready"},
		{"features", fieldLost, "what its runtime can do"},
		{"declaredFeatures", fieldLost, "what it can do, which pods may need"},
	}, asides("addresses", "config", "daemonEndpoints", "images", "nodeInfo", "phase", "runtimeHandlers", "volumesAttached", "volumesInUse"))}
	nomadJobObject = object{"Nomad job", slices.Concat([]field{
		{"ID", fieldMapped, "the job's name, with the task group's"},
		{"Namespace", fieldMapped, "the user"},
		{"Type", fieldMapped, "service, batch, `system` is a daemon; `sysbatch` is batch and counted"},
		{"Priority", fieldMapped, "priority"},
		{"Stop", fieldMapped, "nothing is missing of it"},
		{"Status", fieldMapped, "dead: nothing is missing of it"},
		{"Datacenters", fieldMapped, "constraints; patterns are counted"},
		{"Constraints", fieldMapped, "constraints; others are counted"},
		{"Affinities", fieldMapped, "counted"},
		{"Spreads", fieldMapped, "counted"},
		{"TaskGroups", fieldMapped, "one job each"},
		{"Periodic", fieldLost, "it is started by the clock"},
		{"ParameterizedJob", fieldLost, "it is started with parameters"},
		{"NodePool", fieldLost, "the pool of nodes it runs in, unless it is `default` or `all`"},
		{"AllAtOnce", fieldLost, "all of it is placed or nothing"},
		{"Multiregion", fieldLost, "it runs in other regions too"},
	}, asides("Allocations", "ConsulNamespace", "ConsulToken", "CreateIndex", "Dispatched", "DispatchIdempotencyToken", "JobModifyIndex", "JobSummary", "Meta", "ModifyIndex",
		"Name", "NomadTokenID", "ParentID", "Payload", "Region", "Reschedule", "Stable", "StatusDescription", "SubmitTime", "UI", "Update", "VaultNamespace", "VaultToken", "Version", "VersionTag"))}
	nomadNodeObject = object{"Nomad node", slices.Concat([]field{
		{"ID", fieldMapped, "by which allocations name it"},
		{"Name", fieldMapped, "the machine, the attribute `node`"},
		{"Datacenter", fieldMapped, "attribute"},
		{"NodeClass", fieldMapped, "attribute"},
		{"NodePool", fieldMapped, "attribute"},
		{"Status", fieldMapped, "down, if not ready"},
		{"SchedulingEligibility", fieldMapped, "a taint"},
		{"Drain", fieldMapped, "draining"},
		{"Attributes", fieldMapped, "those that a constraint names"},
		{"Meta", fieldMapped, "those that a constraint names; `rack`"},
		{"NodeResources", fieldMapped, "capacity"},
		{"ReservedResources", fieldMapped, "less of it"},
		{"Resources", fieldMapped, "capacity"},
		{"Reserved", fieldMapped, "less of it"},
		{"HostVolumes", fieldLost, "volumes that only it has"},
		{"CSINodePlugins", fieldLost, "storage that it can attach"},
	}, asides("Address", "CSIControllerPlugins", "CgroupParent", "ComputedClass", "CreateIndex", "DrainStrategy", "Drivers", "Events", "GCVolumesOnNode", "HTTPAddr", "HostNetworks",
		"IdentitySigningKeyID", "LastAllocUpdateIndex", "LastDrain", "LastMissedHeartbeatIndex", "Links", "ModifyIndex", "NodeMaxAllocs", "SecretID", "StatusDescription", "StatusUpdatedAt", "TLSEnabled", "Version"))}
)

// objects are all of them, in the order of the table.
var objects = []*object{&podSpec, &nodeSpec, &nodeStatus, &nomadJobObject, &nomadNodeObject}

// count notes what of an object is lost, and what is not known.
func (o *object) count(c *Cell, raw json.RawMessage) {
	var has map[string]json.RawMessage
	if len(raw) == 0 || json.Unmarshal(raw, &has) != nil {
		return
	}
	for name, value := range has {
		if isEmptyJSON(value) {
			continue
		}
		i := slices.IndexFunc(o.fields, func(f field) bool { return f.name == name })
		switch {
		case i < 0:
			c.note(fmt.Sprintf("%s: the field %s is not known", o.name, brief(name)))
		case o.fields[i].fate == fieldLost && !(name == "NodePool" && (string(value) == `"default"` || string(value) == `"all"`)):
			c.note(fmt.Sprintf("%s: %s is lost: %s", o.name, name, o.fields[i].words))
		}
	}
}

// isEmptyJSON reports whether a value says nothing.
func isEmptyJSON(value json.RawMessage) bool {
	return slices.Contains([]string{"null", "false", "0", `""`, "[]", "{}"}, string(value))
}

package trace

import "slices"

// nomadObjects are where fields stand in objects of Nomad.
var nomadObjects = []*object{
	&nomadJobObject, &nomadGroupObject, &nomadTaskObject, &nomadRequestObject, &nomadDeviceObject, &nomadNetworkObject, &nomadLifecycleObject, &nomadConstraintObject, &nomadDiskObject,
	&nomadAllocObject, &nomadNodeObject, &nomadNodeResourcesObject,
}

var (
	nomadJobObject = object{"Nomad job", slices.Concat([]field{
		{name: "ID", fate: fieldMapped, words: "the job's name, with the task group's"},
		{name: "Namespace", fate: fieldMapped, words: "the user"},
		{name: "Type", fate: fieldMapped, words: "service, batch, `system` is a daemon, also without any allocation; `sysbatch` is batch and counted"},
		{name: "Priority", fate: fieldMapped, words: "priority"},
		{name: "Stop", fate: fieldMapped, words: "nothing is missing of it"},
		{name: "Status", fate: fieldMapped, words: "dead: nothing is missing of it"},
		{name: "Datacenters", fate: fieldMapped, words: "constraints, patterns too"},
		{name: "NodePool", fate: fieldMapped, words: "constraint, unless all nodes are in it"},
		{name: "Constraints", fate: fieldMapped, words: "constraints", of: &nomadConstraintObject},
		{name: "Affinities", fate: fieldMapped, words: "counted"},
		{name: "Spreads", fate: fieldMapped, words: "counted"},
		{name: "TaskGroups", fate: fieldMapped, words: "one job each", of: &nomadGroupObject},
		{name: "Periodic", fate: fieldLost, words: "it is started by the clock; nothing of it waits"},
		{name: "ParameterizedJob", fate: fieldLost, words: "it is started with parameters; nothing of it waits"},
		{name: "Dispatched", fate: fieldMapped, words: "one of those that were"},
		{name: "AllAtOnce", fate: fieldLost, words: "all of it is placed or nothing"},
		{name: "Multiregion", fate: fieldLost, words: "it runs in other regions too"},
	}, asides("Allocations", "ConsulNamespace", "ConsulToken", "CreateIndex", "DispatchIdempotencyToken", "JobModifyIndex", "JobSummary", "Meta", "ModifyIndex",
		"Name", "NomadTokenID", "ParentID", "Payload", "Region", "Reschedule", "Stable", "StatusDescription", "SubmitTime", "UI", "Update", "VaultNamespace", "VaultToken", "Version", "VersionTag"))}
	nomadGroupObject = object{"Nomad task group", slices.Concat([]field{
		{name: "Name", fate: fieldMapped, words: "the job's name"},
		{name: "Count", fate: fieldMapped, words: "what is missing waits; of batch, less what has completed"},
		{name: "Constraints", fate: fieldMapped, words: "constraints", of: &nomadConstraintObject},
		{name: "Affinities", fate: fieldMapped, words: "counted"},
		{name: "Spreads", fate: fieldMapped, words: "counted"},
		{name: "EphemeralDisk", fate: fieldMapped, words: "disk", of: &nomadDiskObject},
		{name: "Networks", fate: fieldMapped, words: "`max_per_machine: 1`, with a static port", of: &nomadNetworkObject},
		{name: "Volumes", fate: fieldMapped, words: "constraints, where a host volume is; others are counted"},
		{name: "Tasks", fate: fieldMapped, words: "the sum of what they ask for at once", of: &nomadTaskObject},
	}, asides("Consul", "Disconnect", "MaxClientDisconnect", "MaxRunDuration", "Meta", "Migrate", "PreventRescheduleOnLost", "ReschedulePolicy", "RestartPolicy", "Scaling", "Services", "ShutdownDelay",
		"StopAfterClientDisconnect", "Update"))}
	nomadTaskObject = object{"Nomad task", slices.Concat([]field{
		{name: "Name", fate: fieldMapped, words: "by which an allocation names it"},
		{name: "Driver", fate: fieldMapped, words: "constraint, unless all nodes have it"},
		{name: "Constraints", fate: fieldMapped, words: "constraints", of: &nomadConstraintObject},
		{name: "Affinities", fate: fieldMapped, words: "counted"},
		{name: "Lifecycle", fate: fieldMapped, words: "when it runs", of: &nomadLifecycleObject},
		{name: "Resources", fate: fieldMapped, words: "resources", of: &nomadRequestObject},
		{name: "Schedule", fate: fieldLost, words: "it runs at some hours only"},
	}, asides("Actions", "Artifacts", "CSIPluginConfig", "Config", "Consul", "DispatchPayload", "Env", "Identities", "Identity", "KillSignal", "KillTimeout", "Kind", "Leader",
		"LogConfig", "Meta", "RestartPolicy", "ScalingPolicies", "Secrets", "Services", "ShutdownDelay", "Templates", "User", "UsesConnect", "Vault", "VolumeMounts"))}
	nomadRequestObject = object{"Nomad task `Resources`", slices.Concat([]field{
		{name: "CPU", fate: fieldMapped, words: "cpu"},
		{name: "Cores", fate: fieldMapped, words: "cpu, of what is missing as much as the fastest cores have; counted"},
		{name: "MemoryMB", fate: fieldMapped, words: "memory"},
		{name: "MemoryMaxMB", fate: fieldLost, words: "it may use more memory than it asks for; it is placed by what it asks for", saysNothing: []string{"-1"}},
		{name: "Devices", fate: fieldMapped, words: "devices", of: &nomadDeviceObject},
		{name: "Networks", fate: fieldMapped, words: "`max_per_machine: 1`, with a static port", of: &nomadNetworkObject},
		{name: "NUMA", fate: fieldLost, words: "cores of one node of memory", saysNothing: []string{`{"Affinity":"none"}`, `{"Affinity":"none","Devices":null}`}},
		{name: "SecretsMB", fate: fieldLost, words: "memory for secrets"},
	}, asides("DiskMB", "IOPS"))}
	nomadDeviceObject = object{"Nomad device", slices.Concat([]field{
		{name: "Name", fate: fieldMapped, words: "its type; a maker or model is counted, where nodes have several"},
		{name: "Count", fate: fieldMapped, words: "how many"},
		{name: "Constraints", fate: fieldMapped, words: "counted"},
		{name: "Affinities", fate: fieldLost, words: "which it would rather have"},
	}, asides())}
	nomadNetworkObject = object{"Nomad network", slices.Concat([]field{
		{name: "ReservedPorts", fate: fieldMapped, words: "`max_per_machine: 1`; counted, as other groups may have it too"},
		{name: "MBits", fate: fieldLost, words: "a share of the network"},
	}, asides("CIDR", "CNI", "DNS", "Device", "DynamicPorts", "Hostname", "IP", "Mode"))}
	nomadLifecycleObject = object{"Nomad `Lifecycle`", slices.Concat([]field{
		{name: "Hook", fate: fieldMapped, words: "before (`prestart`), beside (`poststart`) or after (`poststop`) the others"},
		{name: "Sidecar", fate: fieldMapped, words: "beside the others"},
	}, asides())}
	nomadConstraintObject = object{"Nomad constraint", slices.Concat([]field{
		{name: "LTarget", fate: fieldMapped, words: "an attribute"},
		{name: "RTarget", fate: fieldMapped, words: "its value"},
		{name: "Operand", fate: fieldMapped, words: "a relation, `max_per_machine`, `max_per`; `regexp`, `version`, `semver`, `set_contains*` and texts in order become an attribute `only-…` of the nodes that meet it"},
	}, asides())}
	nomadDiskObject = object{"Nomad `EphemeralDisk`", slices.Concat([]field{
		{name: "SizeMB", fate: fieldMapped, words: "disk"},
	}, asides("Migrate", "Sticky"))}
	nomadAllocObject = object{"Nomad allocation", slices.Concat([]field{
		{name: "ID", fate: fieldMapped, words: "which it is"},
		{name: "Namespace", fate: fieldMapped, words: "the user"},
		{name: "NodeID", fate: fieldMapped, words: "the machine"},
		{name: "NodeName", fate: fieldMapped, words: "the machine, if its node is not there"},
		{name: "JobID", fate: fieldMapped, words: "the job"},
		{name: "TaskGroup", fate: fieldMapped, words: "the job"},
		{name: "Job", fate: fieldMapped, words: "its job, once"},
		{name: "DesiredStatus", fate: fieldMapped, words: "what is being stopped or evicted takes no room; counted"},
		{name: "ClientStatus", fate: fieldMapped, words: "what has ended takes no room; counted"},
		{name: "AllocatedResources", fate: fieldMapped, words: "resources"},
		{name: "Resources", fate: fieldMapped, words: "resources, where nothing is said of each task"},
	}, asides("AllocModifyIndex", "AllocStates", "ClientDescription", "CreateIndex", "CreateTime", "DeploymentID", "DeploymentStatus", "DesiredDescription", "DesiredTransition", "EvalID",
		"FollowupEvalID", "JobType", "JobVersion", "Metrics", "ModifyIndex", "ModifyTime", "Name", "NetworkStatus", "NextAllocation", "PreemptedAllocations", "PreemptedByAllocation",
		"PreviousAllocation", "RescheduleTracker", "Services", "SharedResources", "SignedIdentities", "SigningKeyID", "TaskResources", "TaskStates"))}
	nomadNodeObject = object{"Nomad node", slices.Concat([]field{
		{name: "ID", fate: fieldMapped, words: "by which allocations name it"},
		{name: "Name", fate: fieldMapped, words: "the machine, the attribute `node`"},
		{name: "Datacenter", fate: fieldMapped, words: "attribute"},
		{name: "NodeClass", fate: fieldMapped, words: "attribute"},
		{name: "NodePool", fate: fieldMapped, words: "attribute"},
		{name: "Status", fate: fieldMapped, words: "down, if not ready and no allocation runs there; a taint `not-ready`, if some do: they stay, counted"},
		{name: "SchedulingEligibility", fate: fieldMapped, words: "a taint `ineligible`"},
		{name: "Drain", fate: fieldMapped, words: "a taint `draining`: what runs there stays; counted"},
		{name: "DrainStrategy", fate: fieldMapped, words: "the same"},
		{name: "Attributes", fate: fieldMapped, words: "those that a constraint names"},
		{name: "Meta", fate: fieldMapped, words: "those that a constraint names; `rack`"},
		{name: "Drivers", fate: fieldMapped, words: "whose tasks may run there"},
		{name: "HostVolumes", fate: fieldMapped, words: "whose tasks may run there"},
		{name: "NodeResources", fate: fieldMapped, words: "capacity", of: &nomadNodeResourcesObject},
		{name: "ReservedResources", fate: fieldMapped, words: "less of it"},
		{name: "Resources", fate: fieldMapped, words: "capacity"},
		{name: "Reserved", fate: fieldMapped, words: "less of it"},
		{name: "CSINodePlugins", fate: fieldLost, words: "storage that it can attach"},
	}, asides("Address", "CSIControllerPlugins", "CgroupParent", "ComputedClass", "CreateIndex", "Events", "GCVolumesOnNode", "HTTPAddr", "HostNetworks",
		"IdentitySigningKeyID", "LastAllocUpdateIndex", "LastDrain", "LastMissedHeartbeatIndex", "Links", "ModifyIndex", "NodeMaxAllocs", "SecretID", "StatusDescription", "StatusUpdatedAt", "TLSEnabled", "Version"))}
	nomadNodeResourcesObject = object{"Nomad node `NodeResources`", slices.Concat([]field{
		{name: "CPU", fate: fieldMapped, words: "cpu"},
		{name: "Memory", fate: fieldMapped, words: "memory"},
		{name: "Disk", fate: fieldMapped, words: "disk"},
		{name: "Devices", fate: fieldMapped, words: "devices by type, the healthy ones"},
	}, asides("MaxDynamicPort", "MinDynamicPort", "Networks", "NodeNetworks", "Processors"))}
)

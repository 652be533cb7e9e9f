package trace

import "slices"

// kubernetesObjects are where fields stand in objects of Kubernetes.
var kubernetesObjects = []*object{
	&podSpec, &podStatus, &podMetadata, &kubeContainerFields, &kubeResourceFields, &kubePortFields, &kubeVolumeFields, &kubeAffinityFields, &kubeNodeAffinityFields,
	&kubeTermFields, &kubePreferredFields, &kubePodAffinityFields, &kubePodTermFields, &kubeTolerationFields, &kubeSpreadFields, &nodeSpec, &nodeStatus, &kubeTaintFields,
	&deploymentSpec, &replicaSetSpec, &statefulSetSpec, &daemonSetSpec, &kubeJobSpec, &cronJobSpec, &kubeTemplateFields, &budgetSpec, &claimSpec, &diskSpec,
}

// workloadSpecs are the kinds that make pods.
var workloadSpecs = map[string]*object{
	"Deployment": &deploymentSpec, "ReplicaSet": &replicaSetSpec, "ReplicationController": &replicaSetSpec, "StatefulSet": &statefulSetSpec,
	"DaemonSet": &daemonSetSpec, "Job": &kubeJobSpec,
}

var (
	podSpec = object{"Pod `spec`", slices.Concat([]field{
		{name: "nodeName", fate: fieldMapped, words: "the machine"},
		{name: "containers", fate: fieldMapped, words: "the sum of their requests", of: &kubeContainerFields},
		{name: "initContainers", fate: fieldMapped, words: "at least the largest, beside the sidecars before it; sidecars are added", of: &kubeContainerFields},
		{name: "overhead", fate: fieldMapped, words: "added to the request"},
		{name: "resources", fate: fieldMapped, words: "the request, in place of the sum", of: &kubeResourceFields},
		{name: "nodeSelector", fate: fieldMapped, words: "constraints"},
		{name: "affinity", fate: fieldMapped, words: "constraints and limits per domain", of: &kubeAffinityFields},
		{name: "tolerations", fate: fieldMapped, words: "tolerations", of: &kubeTolerationFields},
		{name: "priority", fate: fieldMapped, words: "priority"},
		{name: "priorityClassName", fate: fieldMapped, words: "priority, where none is given"},
		{name: "preemptionPolicy", fate: fieldMapped, words: "`preempt`"},
		{name: "schedulerName", fate: fieldMapped, words: "ours places it; counted"},
		{name: "restartPolicy", fate: fieldMapped, words: "batch, if nobody owns the pod and it is not `Always`"},
		{name: "activeDeadlineSeconds", fate: fieldMapped, words: "`max_runtime` of batch; of others it is counted"},
		{name: "topologySpreadConstraints", fate: fieldMapped, words: "those that bind are counted: a job is spread anyhow", of: &kubeSpreadFields},
		{name: "schedulingGates", fate: fieldMapped, words: "counted: it may be placed"},
		{name: "volumes", fate: fieldMapped, words: "constraints, where the volume of a claim can be", of: &kubeVolumeFields},
		{name: "hostNetwork", fate: fieldMapped, words: "its ports are `hostPort` too"},
		{name: "resourceClaims", fate: fieldLost, words: "devices that it claims"},
		{name: "os", fate: fieldLost, words: "the operating system it needs", saysNothing: []string{`{"name":"linux"}`, `{"name": "linux"}`}},
		{name: "runtimeClassName", fate: fieldLost, words: "the runtime it needs, but for what its class has put into selector, tolerations and overhead"},
		{name: "schedulingGroup", fate: fieldLost, words: "it is placed with others"},
		{name: "workloadRef", fate: fieldLost, words: "it is placed with others"},
	}, asides("automountServiceAccountToken", "dnsConfig", "dnsPolicy", "enableServiceLinks", "ephemeralContainers", "hostAliases", "hostIPC", "hostPID",
		"hostUsers", "hostname", "hostnameOverride", "imagePullSecrets", "readinessGates", "securityContext", "serviceAccount", "serviceAccountName",
		"setHostnameAsFQDN", "shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds"))}
	podStatus = object{"Pod `status`", slices.Concat([]field{
		{name: "phase", fate: fieldMapped, words: "`Succeeded` and `Failed` take no room; counted"},
		{name: "containerStatuses", fate: fieldMapped, words: "the most of what is asked for and what is held while a container is resized"},
		{name: "initContainerStatuses", fate: fieldMapped, words: "the same of sidecars"},
		{name: "extendedResourceClaimStatus", fate: fieldLost, words: "devices that it claims"},
	}, asides("allocatedResources", "conditions", "ephemeralContainerStatuses", "hostIP", "hostIPs", "message", "nodeAllocatableResourceClaimStatuses", "nominatedNodeName",
		"observedGeneration", "podIP", "podIPs", "qosClass", "reason", "resize", "resourceClaimStatuses", "resources", "startTime"))}
	podMetadata = object{"`metadata`", slices.Concat([]field{
		{name: "name", fate: fieldMapped, words: "the name of what nobody owns"},
		{name: "namespace", fate: fieldMapped, words: "the user"},
		{name: "labels", fate: fieldMapped, words: "of nodes attributes; of pods what selectors of others match"},
		{name: "ownerReferences", fate: fieldMapped, words: "the job; a pod that nobody makes again is not replaced when it is lost; one of a `Node` stays there"},
		{name: "deletionTimestamp", fate: fieldMapped, words: "a pod takes no room; counted"},
	}, asides("annotations", "creationTimestamp", "deletionGracePeriodSeconds", "finalizers", "generateName", "generation", "managedFields", "resourceVersion", "selfLink", "uid"))}
	kubeContainerFields = object{"container", slices.Concat([]field{
		{name: "name", fate: fieldMapped, words: "by which its status is found"},
		{name: "resources", fate: fieldMapped, words: "the request", of: &kubeResourceFields},
		{name: "ports", fate: fieldMapped, words: "`max_per_machine: 1`, with `hostPort`", of: &kubePortFields},
		{name: "restartPolicy", fate: fieldMapped, words: "an init container with `Always` is a sidecar"},
	}, asides("args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "readinessProbe", "resizePolicy", "restartPolicyRules",
		"securityContext", "startupProbe", "stdin", "stdinOnce", "terminationMessagePath", "terminationMessagePolicy", "tty", "volumeDevices", "volumeMounts", "workingDir"))}
	kubeResourceFields = object{"`resources`", slices.Concat([]field{
		{name: "requests", fate: fieldMapped, words: "CPU, memory, disk, devices; others, such as hugepages, are counted"},
		{name: "limits", fate: fieldMapped, words: "the request, where there is none; above it they are counted"},
		{name: "claims", fate: fieldLost, words: "devices that it claims"},
	}, asides())}
	kubePortFields = object{"`ports`", slices.Concat([]field{
		{name: "hostPort", fate: fieldMapped, words: "`max_per_machine: 1`; counted, as pods of other jobs may have it too"},
	}, asides("containerPort", "hostIP", "name", "protocol"))}
	kubeVolumeFields = object{"`volumes`", slices.Concat([]field{
		{name: "name", fate: fieldMapped, words: "the name of an ephemeral claim"},
		{name: "persistentVolumeClaim", fate: fieldMapped, words: "constraints, where the claim's volume can be; counted, if claim or volume is not in the file"},
		{name: "ephemeral", fate: fieldMapped, words: "the same"},
		{name: "awsElasticBlockStore", fate: fieldLost, words: "a disk that is in one place"},
		{name: "azureDisk", fate: fieldLost, words: "a disk that is in one place"},
		{name: "gcePersistentDisk", fate: fieldLost, words: "a disk that is in one place"},
		{name: "cinder", fate: fieldLost, words: "a disk that is in one place"},
		{name: "csi", fate: fieldLost, words: "nodes need its driver"},
	}, asides("azureFile", "cephfs", "configMap", "downwardAPI", "emptyDir", "fc", "flexVolume", "flocker", "gitRepo", "glusterfs", "hostPath", "image", "iscsi", "nfs",
		"photonPersistentDisk", "portworxVolume", "projected", "quobyte", "rbd", "scaleIO", "secret", "storageos", "vsphereVolume"))}
	kubeAffinityFields = object{"`affinity`", slices.Concat([]field{
		{name: "nodeAffinity", fate: fieldMapped, words: "constraints", of: &kubeNodeAffinityFields},
		{name: "podAffinity", fate: fieldMapped, words: "counted: it may be anywhere"},
		{name: "podAntiAffinity", fate: fieldMapped, words: "limits per domain", of: &kubePodAffinityFields},
	}, asides())}
	kubeNodeAffinityFields = object{"`nodeAffinity`", slices.Concat([]field{
		{name: "requiredDuringSchedulingIgnoredDuringExecution", fate: fieldMapped, words: "constraints; alternatives and long lists become an attribute `only-…` of the machines they mean"},
		{name: "preferredDuringSchedulingIgnoredDuringExecution", fate: fieldMapped, words: "soft constraints", of: &kubePreferredFields},
	}, asides())}
	kubeTermFields = object{"node selector term", slices.Concat([]field{
		{name: "matchExpressions", fate: fieldMapped, words: "`In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt`, `Lt`"},
		{name: "matchFields", fate: fieldMapped, words: "`metadata.name` is the attribute `node`; of a DaemonSet it is left out"},
	}, asides())}
	kubePreferredFields = object{"preferred node selector term", slices.Concat([]field{
		{name: "preference", fate: fieldMapped, words: "a soft constraint", of: &kubeTermFields},
	}, asides("weight"))}
	kubePodAffinityFields = object{"`podAntiAffinity`", slices.Concat([]field{
		{name: "requiredDuringSchedulingIgnoredDuringExecution", fate: fieldMapped, words: "`max_per_machine`, `max_per_rack`, `max_per_power`, `max_per`, each 1, from its own kind; counted, from others", of: &kubePodTermFields},
		{name: "preferredDuringSchedulingIgnoredDuringExecution", fate: fieldMapped, words: "counted: a job is spread anyhow"},
	}, asides())}
	kubePodTermFields = object{"pod affinity term", slices.Concat([]field{
		{name: "labelSelector", fate: fieldMapped, words: "whom it means, with all operators"},
		{name: "topologyKey", fate: fieldMapped, words: "the domain"},
		{name: "namespaces", fate: fieldMapped, words: "others than its own are counted"},
		{name: "namespaceSelector", fate: fieldMapped, words: "counted"},
		{name: "matchLabelKeys", fate: fieldLost, words: "it means fewer of its kind"},
		{name: "mismatchLabelKeys", fate: fieldLost, words: "it means fewer of its kind"},
	}, asides())}
	kubeTolerationFields = object{"`tolerations`", slices.Concat([]field{
		{name: "key", fate: fieldMapped, words: "key; with none, all taints that nodes have"},
		{name: "operator", fate: fieldMapped, words: "`Equal`, `Exists`; others are counted"},
		{name: "value", fate: fieldMapped, words: "value"},
		{name: "effect", fate: fieldMapped, words: "left out, where nodes have the taint with another effect only; both are counted"},
		{name: "tolerationSeconds", fate: fieldMapped, words: "for how long, at most a day; of a DaemonSet it is counted"},
	}, asides())}
	kubeSpreadFields = object{"`topologySpreadConstraints`", slices.Concat([]field{
		{name: "whenUnsatisfiable", fate: fieldMapped, words: "counted, unless `ScheduleAnyway`"},
	}, asides("labelSelector", "matchLabelKeys", "maxSkew", "minDomains", "nodeAffinityPolicy", "nodeTaintsPolicy", "topologyKey"))}
	nodeSpec = object{"Node `spec`", slices.Concat([]field{
		{name: "taints", fate: fieldMapped, words: "taints", of: &kubeTaintFields},
		{name: "unschedulable", fate: fieldMapped, words: "a taint"},
	}, asides("configSource", "externalID", "podCIDR", "podCIDRs", "providerID"))}
	nodeStatus = object{"Node `status`", slices.Concat([]field{
		{name: "allocatable", fate: fieldMapped, words: "capacity, with 16 kinds of devices, first those that pods ask for; the limit of pods is counted"},
		{name: "capacity", fate: fieldMapped, words: "capacity, where nothing is allocatable"},
		{name: "conditions", fate: fieldMapped, words: "down, if not ready and no pod runs there; a taint, if some do: they stay, counted"},
		{name: "features", fate: fieldLost, words: "what its runtime can do"},
		{name: "declaredFeatures", fate: fieldLost, words: "what it can do, which pods may need"},
	}, asides("addresses", "config", "daemonEndpoints", "images", "nodeInfo", "phase", "runtimeHandlers", "volumesAttached", "volumesInUse"))}
	kubeTaintFields = object{"`taints`", slices.Concat([]field{
		{name: "key", fate: fieldMapped, words: "key; of two the stronger one, counted"},
		{name: "value", fate: fieldMapped, words: "value"},
		{name: "effect", fate: fieldMapped, words: "keeps away, advises (`PreferNoSchedule`) or evicts (`NoExecute`)"},
	}, asides("timeAdded"))}
	deploymentSpec = object{"Deployment `spec`", slices.Concat([]field{
		{name: "replicas", fate: fieldMapped, words: "pods that are missing wait"},
		{name: "template", fate: fieldMapped, words: "what they ask for", of: &kubeTemplateFields},
	}, asides("minReadySeconds", "paused", "progressDeadlineSeconds", "revisionHistoryLimit", "selector", "strategy"))}
	replicaSetSpec = object{"ReplicaSet, ReplicationController `spec`", slices.Concat([]field{
		{name: "replicas", fate: fieldMapped, words: "pods that are missing wait, unless its Deployment is there"},
		{name: "template", fate: fieldMapped, words: "what they ask for", of: &kubeTemplateFields},
	}, asides("minReadySeconds", "selector"))}
	statefulSetSpec = object{"StatefulSet `spec`", slices.Concat([]field{
		{name: "replicas", fate: fieldMapped, words: "pods that are missing wait"},
		{name: "template", fate: fieldMapped, words: "what they ask for", of: &kubeTemplateFields},
		{name: "volumeClaimTemplates", fate: fieldLost, words: "the volumes of pods that are missing; the others name their claims"},
	}, asides("minReadySeconds", "ordinals", "persistentVolumeClaimRetentionPolicy", "podManagementPolicy", "revisionHistoryLimit", "selector", "serviceName", "updateStrategy"))}
	daemonSetSpec = object{"DaemonSet `spec`", slices.Concat([]field{
		{name: "template", fate: fieldMapped, words: "a daemon job, also without any pod", of: &kubeTemplateFields},
	}, asides("minReadySeconds", "revisionHistoryLimit", "selector", "updateStrategy"))}
	kubeJobSpec = object{"Job `spec`", slices.Concat([]field{
		{name: "parallelism", fate: fieldMapped, words: "pods that are missing wait"},
		{name: "completions", fate: fieldMapped, words: "no more than are left"},
		{name: "suspend", fate: fieldMapped, words: "none are missing"},
		{name: "template", fate: fieldMapped, words: "batch", of: &kubeTemplateFields},
		{name: "activeDeadlineSeconds", fate: fieldLost, words: "it ends after that time"},
	}, asides("backoffLimit", "backoffLimitPerIndex", "completionMode", "managedBy", "manualSelector", "maxFailedIndexes", "podFailurePolicy", "podReplacementPolicy",
		"selector", "successPolicy", "ttlSecondsAfterFinished"))}
	cronJobSpec = object{"CronJob `spec`", slices.Concat([]field{
		{name: "schedule", fate: fieldLost, words: "it is started by the clock; its runs are Jobs"},
	}, asides("concurrencyPolicy", "failedJobsHistoryLimit", "jobTemplate", "startingDeadlineSeconds", "successfulJobsHistoryLimit", "suspend", "timeZone"))}
	kubeTemplateFields = object{"`template`", slices.Concat([]field{
		{name: "metadata", fate: fieldMapped, words: "labels"},
		{name: "spec", fate: fieldMapped, words: "as the `spec` of a pod", of: &podSpec},
	}, asides())}
	budgetSpec = object{"PodDisruptionBudget `spec`", slices.Concat([]field{
		{name: "minAvailable", fate: fieldMapped, words: "`disruption_budget`, if it selects all pods of one job and no others; counted, otherwise"},
		{name: "maxUnavailable", fate: fieldMapped, words: "the same"},
		{name: "selector", fate: fieldMapped, words: "which job"},
	}, asides("unhealthyPodEvictionPolicy"))}
	claimSpec = object{"PersistentVolumeClaim `spec`", slices.Concat([]field{
		{name: "volumeName", fate: fieldMapped, words: "the volume"},
		{name: "accessModes", fate: fieldMapped, words: "counted, where pods share a claim that one node at a time can have"},
	}, asides("dataSource", "dataSourceRef", "resources", "selector", "storageClassName", "volumeAttributesClassName", "volumeMode"))}
	diskSpec = object{"PersistentVolume `spec`", slices.Concat([]field{
		{name: "nodeAffinity", fate: fieldMapped, words: "constraints of the pods with its claim"},
	}, asides("accessModes", "awsElasticBlockStore", "azureDisk", "azureFile", "capacity", "cephfs", "cinder", "claimRef", "csi", "fc", "flexVolume", "flocker", "gcePersistentDisk",
		"glusterfs", "hostPath", "iscsi", "local", "mountOptions", "nfs", "persistentVolumeReclaimPolicy", "photonPersistentDisk", "portworxVolume", "quobyte", "rbd", "scaleIO",
		"storageClassName", "storageos", "volumeAttributesClassName", "volumeMode", "vsphereVolume"))}
)

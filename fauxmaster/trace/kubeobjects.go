package trace

import (
	"encoding/json"
)

// What is read of the objects of Kubernetes, by the names that its API gives.

type kubeMeta struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
	Owners    []kubeRef         `json:"ownerReferences"`
	Deleted   string            `json:"deletionTimestamp"`
}

type kubeRef struct {
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	Controller *bool  `json:"controller"`
}

type kubeNode struct {
	Meta kubeMeta `json:"metadata"`
	Spec struct {
		Unschedulable bool        `json:"unschedulable"`
		Taints        []kubeTaint `json:"taints"`
	} `json:"spec"`
	Status struct {
		Allocatable map[string]string `json:"allocatable"`
		Capacity    map[string]string `json:"capacity"`
		Conditions  []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

type kubeTaint struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"`
}

type kubeClass struct {
	Meta       kubeMeta `json:"metadata"`
	Value      int64    `json:"value"`
	Default    bool     `json:"globalDefault"`
	Preemption string   `json:"preemptionPolicy"`
}

type kubePod struct {
	Meta   kubeMeta    `json:"metadata"`
	Spec   kubePodSpec `json:"spec"`
	Status struct {
		Phase      string               `json:"phase"`
		Containers []kubeContainerState `json:"containerStatuses"`
		Init       []kubeContainerState `json:"initContainerStatuses"`
	} `json:"status"`
}

type kubePodSpec struct {
	Node           string            `json:"nodeName"`
	Containers     []kubeContainer   `json:"containers"`
	Init           []kubeContainer   `json:"initContainers"`
	Overhead       map[string]string `json:"overhead"`
	Resources      kubeRequests      `json:"resources"`
	Selector       map[string]string `json:"nodeSelector"`
	Priority       *int64            `json:"priority"`
	Class          string            `json:"priorityClassName"`
	Preemption     string            `json:"preemptionPolicy"`
	Scheduler      string            `json:"schedulerName"`
	Restart        string            `json:"restartPolicy"`
	Deadline       *int64            `json:"activeDeadlineSeconds"`
	Tolerations    []kubeToleration  `json:"tolerations"`
	Affinity       *kubeAffinity     `json:"affinity"`
	TopologySpread []struct {
		Unsatisfiable string `json:"whenUnsatisfiable"`
	} `json:"topologySpreadConstraints"`
	Gates   []json.RawMessage `json:"schedulingGates"`
	Volumes []kubeVolume      `json:"volumes"`
}

type kubeVolume struct {
	Name  string `json:"name"`
	Claim *struct {
		Name string `json:"claimName"`
	} `json:"persistentVolumeClaim"`
	Ephemeral *json.RawMessage `json:"ephemeral"`
}

type kubeRequests struct {
	Requests map[string]string `json:"requests"`
	Limits   map[string]string `json:"limits"`
}

type kubeContainer struct {
	Name      string       `json:"name"`
	Restart   string       `json:"restartPolicy"`
	Resources kubeRequests `json:"resources"`
	Ports     []kubePort   `json:"ports"`
}

type kubePort struct {
	Host int64 `json:"hostPort"`
}

// kubeContainerState is what a container has at the moment, while it is resized.
type kubeContainerState struct {
	Name      string            `json:"name"`
	Allocated map[string]string `json:"allocatedResources"`
	Resources kubeRequests      `json:"resources"`
}

type kubeToleration struct {
	Key      string `json:"key"`
	Operator string `json:"operator"`
	Value    string `json:"value"`
	Effect   string `json:"effect"`
	Seconds  *int64 `json:"tolerationSeconds"`
}

type kubeTerm struct {
	Expressions []kubeExpression `json:"matchExpressions"`
	Fields      []kubeExpression `json:"matchFields"`
}

type kubeExpression struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values"`
}

type kubeSelector struct {
	Labels      map[string]string `json:"matchLabels"`
	Expressions []kubeExpression  `json:"matchExpressions"`
}

type kubePodTerm struct {
	Selector       *kubeSelector   `json:"labelSelector"`
	Topology       string          `json:"topologyKey"`
	Namespaces     []string        `json:"namespaces"`
	NamespacesLike json.RawMessage `json:"namespaceSelector"`
}

type kubeAffinity struct {
	Node    *kubeNodeAffinity `json:"nodeAffinity"`
	Pod     *kubePodAffinity  `json:"podAffinity"`
	AntiPod *kubePodAffinity  `json:"podAntiAffinity"`
}

type kubeNodeAffinity struct {
	Required  *kubeTerms `json:"requiredDuringSchedulingIgnoredDuringExecution"`
	Preferred []struct {
		Term kubeTerm `json:"preference"`
	} `json:"preferredDuringSchedulingIgnoredDuringExecution"`
}

// kubeTerms are alternatives.
type kubeTerms struct {
	Terms []kubeTerm `json:"nodeSelectorTerms"`
}

type kubePodAffinity struct {
	Required  []kubePodTerm     `json:"requiredDuringSchedulingIgnoredDuringExecution"`
	Preferred []json.RawMessage `json:"preferredDuringSchedulingIgnoredDuringExecution"`
}

// kubeWorkload is any of the kinds that make pods.
type kubeWorkload struct {
	Meta kubeMeta `json:"metadata"`
	Kind string   `json:"kind"`
	Spec struct {
		Replicas    *int64 `json:"replicas"`
		Parallelism *int64 `json:"parallelism"`
		Completions *int64 `json:"completions"`
		Suspend     bool   `json:"suspend"`
		Template    struct {
			Meta kubeMeta    `json:"metadata"`
			Spec kubePodSpec `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
	Status struct {
		Succeeded  int64           `json:"succeeded"`
		Conditions []kubeCondition `json:"conditions"`
	} `json:"status"`
}

type kubeCondition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

type kubeClaim struct {
	Meta kubeMeta `json:"metadata"`
	Spec struct {
		Volume string   `json:"volumeName"`
		Modes  []string `json:"accessModes"`
	} `json:"spec"`
}

type kubeDisk struct {
	Meta kubeMeta `json:"metadata"`
	Spec struct {
		Affinity *struct {
			Required *kubeTerms `json:"required"`
		} `json:"nodeAffinity"`
	} `json:"spec"`
}

type kubeBudget struct {
	Meta kubeMeta `json:"metadata"`
	Spec struct {
		Min      json.RawMessage `json:"minAvailable"`
		Max      json.RawMessage `json:"maxUnavailable"`
		Selector *kubeSelector   `json:"selector"`
	} `json:"spec"`
}

package export

// The rows of Google's trace of 2019 (clusterdata_trace_format_v3). In JSON whole
// numbers of 64 bits are strings, as in its exports.

// Share is an amount of CPU and memory as a share of the largest machine.
type Share struct {
	CPUs   float64 `parquet:"cpus" json:"cpus"`
	Memory float64 `parquet:"memory" json:"memory"`
}

// CollectionEvent is a row of collection_events: something happened to a job or an
// alloc set.
type CollectionEvent struct {
	Time                  int64   `parquet:"time" json:"time,string"`
	Type                  int32   `parquet:"type" json:"type"`
	CollectionID          int64   `parquet:"collection_id" json:"collection_id,string"`
	SchedulingClass       int32   `parquet:"scheduling_class" json:"scheduling_class"`
	MissingType           int32   `parquet:"missing_type" json:"missing_type"`
	CollectionType        int32   `parquet:"collection_type" json:"collection_type"`
	Priority              int32   `parquet:"priority" json:"priority"`
	AllocCollectionID     int64   `parquet:"alloc_collection_id" json:"alloc_collection_id,string"`
	User                  string  `parquet:"user" json:"user"`
	CollectionName        string  `parquet:"collection_name" json:"collection_name"`
	CollectionLogicalName string  `parquet:"collection_logical_name" json:"collection_logical_name"`
	ParentCollectionID    int64   `parquet:"parent_collection_id" json:"parent_collection_id,string"`
	StartAfter            []int64 `parquet:"start_after_collection_ids" json:"start_after_collection_ids"`
	MaxPerMachine         int32   `parquet:"max_per_machine" json:"max_per_machine"`
	MaxPerSwitch          int32   `parquet:"max_per_switch" json:"max_per_switch"`
	VerticalScaling       int32   `parquet:"vertical_scaling" json:"vertical_scaling"`
	Scheduler             int32   `parquet:"scheduler" json:"scheduler"`
}

// InstanceEvent is a row of instance_events: something happened to a task or alloc.
type InstanceEvent struct {
	Time               int64        `parquet:"time" json:"time,string"`
	Type               int32        `parquet:"type" json:"type"`
	CollectionID       int64        `parquet:"collection_id" json:"collection_id,string"`
	SchedulingClass    int32        `parquet:"scheduling_class" json:"scheduling_class"`
	MissingType        int32        `parquet:"missing_type" json:"missing_type"`
	CollectionType     int32        `parquet:"collection_type" json:"collection_type"`
	Priority           int32        `parquet:"priority" json:"priority"`
	AllocCollectionID  int64        `parquet:"alloc_collection_id" json:"alloc_collection_id,string"`
	InstanceIndex      int32        `parquet:"instance_index" json:"instance_index"`
	MachineID          int64        `parquet:"machine_id" json:"machine_id,string"`
	AllocInstanceIndex int32        `parquet:"alloc_instance_index" json:"alloc_instance_index"`
	ResourceRequest    Share        `parquet:"resource_request" json:"resource_request"`
	Constraint         []Constraint `parquet:"constraint" json:"constraint"`
}

// Constraint of a task, with Google's numbers of relations.
type Constraint struct {
	Name     string `parquet:"name" json:"name"`
	Value    string `parquet:"value" json:"value"`
	Relation int32  `parquet:"relation" json:"relation"`
}

// MachineEvent is a row of machine_events.
type MachineEvent struct {
	Time              int64  `parquet:"time" json:"time,string"`
	MachineID         int64  `parquet:"machine_id" json:"machine_id,string"`
	Type              int32  `parquet:"type" json:"type"`
	SwitchID          string `parquet:"switch_id" json:"switch_id"`
	Capacity          Share  `parquet:"capacity" json:"capacity"`
	PlatformID        string `parquet:"platform_id" json:"platform_id"`
	MissingDataReason int32  `parquet:"missing_data_reason" json:"missing_data_reason"`
}

// InstanceUsage is a row of instance_usage: what a task used in a stretch of time. Of
// what is not measured there are no columns but those that readers want filled.
type InstanceUsage struct {
	StartTime          int64   `parquet:"start_time" json:"start_time,string"`
	EndTime            int64   `parquet:"end_time" json:"end_time,string"`
	CollectionID       int64   `parquet:"collection_id" json:"collection_id,string"`
	InstanceIndex      int32   `parquet:"instance_index" json:"instance_index"`
	MachineID          int64   `parquet:"machine_id" json:"machine_id,string"`
	AllocCollectionID  int64   `parquet:"alloc_collection_id" json:"alloc_collection_id,string"`
	AllocInstanceIndex int64   `parquet:"alloc_instance_index" json:"alloc_instance_index,string"`
	CollectionType     int32   `parquet:"collection_type" json:"collection_type"`
	AverageUsage       Share   `parquet:"average_usage" json:"average_usage"`
	MaximumUsage       Share   `parquet:"maximum_usage" json:"maximum_usage"`
	AssignedMemory     float64 `parquet:"assigned_memory" json:"assigned_memory"`
	SampleRate         float64 `parquet:"sample_rate" json:"sample_rate"`
}

// Name says what a number stands for.
type Name struct {
	ID   int64  `parquet:"id" json:"id,string"`
	Kind string `parquet:"kind" json:"kind"`
	Name string `parquet:"name" json:"name"`
}

package borgpb

// TaskPortFirst and TaskPortLast are the ports that a machine offers to tasks unless its owner
// says otherwise. Machines that are planned, or come from a source that knows no ports of tasks,
// offer these too.
const (
	TaskPortFirst = 20000
	TaskPortLast  = 29999
)

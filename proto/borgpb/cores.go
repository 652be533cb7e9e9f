package borgpb

// Names by which a machine says what of its processors tasks may have alone.
const (
	// ExclusiveCPU is a device: one processor of a core that a task may have with all
	// its threads. A task that asks for exclusive cores gets as many as it has cpu.
	ExclusiveCPU = "exclusive-cpu"
	// CoreThreads is an attribute: how many processors, which are the threads of one
	// core, belong together. A power of two.
	CoreThreads = "core_threads"
)

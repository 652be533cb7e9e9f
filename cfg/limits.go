package cfg

import "time"

// Bounds on a file and its evaluation.
const (
	// One file, in bytes.
	maxFileBytes = 1 << 20
	// Files that one evaluation may load.
	maxFiles = 100
	// Steps of the interpreter, all files together.
	maxSteps = 10_000_000
	// Time for one evaluation.
	maxEvalTime = 10 * time.Second
	// Growth of the process's heap during one evaluation, in bytes.
	maxHeapGrowth = 256 << 20
	// Elements of one list or characters of one string made by repetition, and
	// numbers in one range.
	maxRepeat = 1 << 20
	// Bytes of what a file yields: all texts and numbers that reach a spec.
	maxOutputBytes = 1 << 20
	// Values that a file yields.
	maxOutputValues = 200_000
	// Names in one mapping.
	maxNames = 10_000
	// Nesting of values.
	maxDepth = 64
	// Jobs and alloc sets in one file.
	maxObjects = 1000
	// Faults that are printed.
	maxFaults = 20
	// Faults after which the reading of a file ends.
	maxNoted = 1000
)

// Bounds on specs. The cell has the same ones and checks them again.
const (
	maxTasks              = 100_000
	maxGang               = 10_000
	maxPriority           = 450
	maxFailures           = 1_000_000
	maxLabels             = 64
	maxLabelKeyBytes      = 63
	maxLabelBytes         = 255
	maxAnnotationBytes    = 64 << 10
	maxAnnotations        = 1_000
	maxExtensionBytes     = 64 << 10
	maxExtensions         = 1_000
	maxEnv                = 4_096
	maxSpecBytes          = 256 << 10
	maxPorts              = 16
	maxSaveNs             = 72 * 3600 * 1_000_000_000
	maxSaverCPUMilli      = 1_000
	maxSaverMemBytes      = 1 << 30
	maxSaverDiskBytes     = 1 << 30
	maxSaverDiskBytesPerS = 100 << 20
	maxConstraints        = 32
	maxTolerations        = 32
	maxAttributeLimits    = 4
	maxPackages           = 64
	maxMounts             = 64
	maxSecrets            = 32
	maxPushedFiles        = 16
	maxFileNameBytes      = 255
	maxStartAfter         = 32
	maxDevices            = 16
	maxOverrides          = 1_000
	// Environment variables over all runs of overrides together.
	maxOverriddenEnv = 200_000
	maxPathBytes     = 4096
	maxPortCount     = 1 << 16
	maxDeviceCount   = 1 << 20
	// Of a grace and of what health checks wait for.
	maxCheckTimeoutNs = int64(60 * time.Second)
	maxSpanNs         = int64(24 * time.Hour)
	maxPreemptWaitNs  = int64(10 * time.Minute)
	// Of one run of a batch task.
	maxRuntimeNs = int64(366 * 24 * time.Hour)
	// Of what updates wait for, and of how long they stay open.
	maxUpdateWaitNs = int64(7 * 24 * time.Hour)
	maxUpdateOpenNs = int64(90 * 24 * time.Hour)
	// Disruptions of one task that a budget may allow, and of the time in which.
	maxDisruptions = 16
	maxWindowNs    = int64(90 * 24 * time.Hour)
	// Of any other time.
	maxTimeNs      = int64(1) << 61
	maxCPUMilli    = int64(1_000_000_000)
	maxAmountBytes = int64(1) << 50
	// A task with less memory cannot even be started.
	minMemBytes = 1 << 20
)

// What a file gets when it says nothing.
const (
	defaultGraceNs     = int64(30 * time.Second)
	defaultMaxFailures = 3
)

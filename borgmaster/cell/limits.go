package cell

import (
	"borg/borgmaster/selector"
	"borg/mutant"
	"borg/proto/borgpb"
)

// The one page of limits; docs/limits.md is the same for people. What passes one
// is refused with INVALID (a value out of its range) or LIMIT (too many of
// something).
const (
	// MaxEntryBytes is the size of a log entry. Who fills entries must keep to it
	// and to MaxOpsInEntry: an entry beyond is refused whole.
	MaxEntryBytes = 1 << 20
	MaxOpsInEntry = 10_000
	// MaxSpecBytes is the size of a job's or an alloc set's spec.
	MaxSpecBytes = 256 << 10
	// MaxOpElements is how many texts, numbers, messages, elements of lists and entries of
	// maps an op of a caller may have, its spec included. Masters refuse more before the log: the
	// cell has a bound for each field.
	MaxOpElements = 40_000
	// Those of a spec.
	maxSpecElements = 32_768
	// MaxGrantedDevices is how many devices of one name one task or alloc may be
	// granted; who asks for more finds no place.
	MaxGrantedDevices = 4_096

	maxTasksPerJob  = 100_000
	maxAllocsPerSet = 100_000
	maxLiveTasks    = 2_000_000
	maxTasksOfUser  = 200_000
	maxAllocs       = 1_000_000
	maxAllocsOfUser = 100_000
	// Jobs and alloc sets that are not dead.
	maxObjects       = 500_000
	maxObjectsOfUser = 50_000
	maxCronJobs      = 20_000
	// Each is looked at for its next slot.
	maxCronJobsOfUser = 2_000
	// Memory for specs as encoded, as decoded and as merged, for labels and for annotations
	// of what is not dead.
	maxStateBytes       = 2 << 30
	maxStateBytesOfUser = 256 << 20
	// What the merged task of one run of indices is charged.
	runBytes = 768
	// Of the cell's tasks, allocs, objects and bytes, what only production and admins may
	// use, in thousandths.
	stateReserveMilli = 100
	// What a task or an alloc takes in memory, at most, a job or an alloc set without its
	// spec and texts, a file without its content, and a request that is remembered.
	taskMemory         = 1 << 10
	objectMemory       = 4 << 10
	fileMemory         = 1 << 10
	requestMemory      = 2 << 10
	maxMachines        = 200_000
	maxCopiesOnMachine = 4_096
	maxAllocsOnMachine = 4_096
	// Copies of one task that still hold a place besides the current one.
	maxLiveCopiesOfTask = 16
	// Ended copies of one task that are remembered.
	maxEndedCopiesOfTask = 3

	// Packages that a machine can say to have.
	maxMachinePackages = 128

	maxLabels          = 64
	maxLabelKeyBytes   = 63
	maxLabelValueBytes = 255
	maxAnnotationBytes = 64 << 10
	maxAnnotations     = 1_000
	maxExtensionBytes  = 64 << 10
	maxExtensions      = 1_000
	// Variables of a task, those of the overrides for it included. Readers get them as one
	// map.
	maxEnv       = 4_096
	maxOverrides = 1_000
	// Arguments and environment variables that merging the overrides touches.
	maxMergeWork   = 1_000_000
	maxConstraints = 32
	maxTolerations = 32
	// Attributes of which a spec limits its tasks per value.
	maxAttributeLimits = 4
	maxTaints          = 32
	maxPorts           = 16
	// Ports of a machine that others hold: in all, in one report, and named in a
	// sentence; for how long they are left out; and the words on one of them.
	maxHeldPorts      = 256
	maxHeldPortsTold  = 64
	maxHeldPortsNamed = 4
	heldPortNs        = 120 * second
	maxHeldByBytes    = 40
	// The name of a process that the kernel killed.
	maxProcessNameBytes = 64
	maxPackages         = 64
	maxMounts           = 64
	maxSecrets          = 32
	maxPushedFiles      = 16
	maxStartAfter       = 32
	// Jobs that one entry ends because others have ended; or the tasks after which it ends no
	// more. The next portion comes after the pause.
	maxEndedJobs  = 1_000
	maxEndedTasks = 10_000
	endingPauseNs = 100_000_000
	maxDevices    = 16
	maxGangTasks  = 10_000
	maxFailures   = 1_000_000
	// Until an update that is done closes, if its job does not say.
	updateOpenNs    = 24 * 3600 * second
	maxUpdateOpenNs = 90 * 24 * 3600 * second
	maxUpdateWaitNs = 7 * 24 * 3600 * second
	// Tasks with a neighbour that is down which an update passes over, to deal with
	// others meanwhile.
	maxRollAhead = 64
	// Until an update fails whose gate is out of bounds, if its job does not say.
	gateFailsAfterNs  = 600 * second
	maxGateURLBytes   = 1_024
	maxGateQueryBytes = 4_096

	maxVictims   = 256
	maxMoves     = 64
	maxPathBytes = 4_096

	maxPriority      = 450
	maxCPUMilli      = 1_000_000_000
	maxMemBytes      = 1 << 50
	maxDiskBytes     = 1 << 50
	maxDiskBytesPerS = 1 << 50
	maxPortCount     = 1 << 16
	maxDeviceCount   = 1 << 20
	maxGraceNs       = 24 * 3600 * second
	// Of one run of a batch task, if it has a limit.
	maxRuntimeNs = 366 * 24 * 3600 * second
	// Of one check of health; a longer one would hold the machine's places for checks.
	maxCheckTimeoutNs = 60 * second

	maxUsers   = 100_000
	maxTokens  = 10_000
	maxTokenNs = 24 * 3600 * second
	// revocationNs is the least time for which a revocation is kept. It is longer than the life
	// of any user's certificate.
	revocationNs = 7 * 24 * 3600 * second

	// Quotas, and users whose tasks are bounded.
	maxQuotas = 100_000
	// Of one dimension of a quota: a cell may have more than a machine.
	maxQuotaAmount  = 1 << 60
	maxQuotaDevices = 1 << 40
	// How far a band can be sold, and is when nobody said, in thousandths of the cell.
	maxOversell               = 1_000_000
	defaultOversellProduction = 1_000
	defaultOversell           = 3_000

	maxBans         = 1_000
	maxPackageBytes = 255

	// MaxSecretBytes is the size of a value, before it is sealed.
	MaxSecretBytes   = 64 << 10
	maxSecretsOfUser = 100
	maxSecretsOfCell = 100_000
	// Of the whole cell, sealed: each replica has them in memory.
	maxSecretsBytes = 64 << 20
	// What sealing adds: a nonce and a tag.
	sealBytes  = 28
	keyIDBytes = 16

	// MaxFileBytes is the size of a small file of a user.
	MaxFileBytes        = 256 << 10
	maxFileNameBytes    = 255
	maxFileSegments     = 8
	maxFileSegmentBytes = 63
	maxFilesOfUser      = 1_000
	maxFileBytesOfUser  = 8 << 20
	// Of the whole cell: each replica and each scheduler has them in memory.
	maxFiles      = 100_000
	maxFilesBytes = 128 << 20

	// Rules of the cell's label policy, and what each may list.
	maxLabelRules       = 256
	maxLabelRuleValues  = 64
	maxLabelPolicyBytes = 64 << 10

	// Groups of the policy of visibility, and their members together.
	maxShareGroups  = 1_000
	maxShareMembers = 4_096
	// Keys that are taken away at once.
	maxLabelsRemoved = 1_000

	maxNoteBytes           = 256
	maxNoteAnnotations     = 16
	maxNoteAnnotationBytes = 4 << 10
	// What a note is charged beside its texts.
	noteMemory = 128

	maxRequestIDBytes  = 64
	maxRequests        = 1_000_000
	maxRequestsOfUser  = 50_000
	requestMemoryNs    = 15 * 60 * second
	maxCommandBytes    = 1_024
	maxReasonBytes     = 1_024
	maxAddrBytes       = 255
	maxReportTextBytes = 1_024

	// Disruptions of one task that are remembered, and that a budget may allow.
	maxDisruptionsKept = 16
	maxBudgetWindowNs  = 90 * 24 * 3600 * second
	maxDrainNs         = 366 * 24 * 3600 * second
	// Tasks that a drain shows as waiting.
	maxBlockersShown = 64

	// Copies in quarantine, of one task, of one user and in the cell, and for how long.
	maxQuarantinedOfTask = 4
	maxQuarantinedOfUser = 5_000
	maxQuarantined       = 10_000
	quarantineNs         = 24 * 3600 * second
	maxQuarantineNs      = 30 * 24 * 3600 * second

	// Jobs at once that save what allocs left, in all and of one user; what one may ask for,
	// how long it is tried, and the pauses between.
	maxSavers             = 1_000
	maxSaversOfUser       = 500
	maxSaverCPUMilli      = 1_000
	maxSaverMemBytes      = 1 << 30
	maxSaverDiskBytes     = 1 << 30
	maxSaverDiskBytesPerS = 100 << 20
	saveNs                = 24 * 3600 * second
	maxSaveNs             = 72 * 3600 * second
	saveAgainNs           = 10 * second
	maxSaveAgainNs        = 600 * second
	maxSavesShown         = 100
	maxSaverNames         = 10

	// From one look at the allocs of a set that are yet to become what it says to the next.
	setAgainNs = second
	// Volumes of a task or alloc, on a machine and in the cell; how long they are kept
	// after they were used last.
	maxVolumesOfTask    = 8
	maxVolumesOnMachine = 10_000
	maxVolumes          = 200_000
	maxVolumesOfUser    = 50_000
	// Disk of volumes that are kept for who works in them no more. Bytes.
	maxKeptDiskOfUser = 16 << 40
	maxKeptDisk       = 1 << 50
	volumeKeepNs      = 24 * 3600 * second
	maxVolumeKeepNs   = 366 * 24 * 3600 * second

	// How long a task is kept away from the machine on which it crashed twice in a row,
	// and before format 5.
	crashMemoryNs     = 3600 * second
	crashMemoryOnceNs = 600 * second
	maxCrashesCounted = 6
	// When a row of crashes is over, if none followed.
	crashesForgottenNs = 24 * 3600 * second
	// Ends in a row of a service's process after which another machine is tried.
	crashesBeforeMoved = 5
	// Machines on which most tasks of a job have to wait to be started again before that is
	// the job's doing.
	crashesOfJobMachines = 3

	// Wait after the second failure in a row of a task; it doubles with each that follows, up to
	// maxRetryNs. An attempt that ran for retryHealthyNs begins a new row.
	retryBaseNs       = 2 * second
	maxRetryNs        = 300 * second
	retryHealthyNs    = 600 * second
	maxRetriesCounted = 30

	// Dead jobs and alloc sets.
	maxDeadObjects       = 10_000
	maxDeadObjectsOfUser = 2_000
	maxDeadTasks         = 1_000_000
	maxDeadTasksOfUser   = 200_000
	maxDeadBytes         = 512 << 20
	maxDeadBytesOfUser   = 64 << 20

	deadMemoryNs    = 24 * 3600 * second
	maxTimeNs       = 1 << 61
	wallStepNs      = 60 * second
	maxOutageStepNs = 7 * 24 * 3600 * second

	defaultGraceNs    = 30 * second
	preemptionGraceNs = 10 * second
	// Of those below production, since format 8.
	lowPreemptionGraceNs = 30 * second
	maxVictimsWhyBytes   = 512
	// Meanwhile nobody else, production included, gets the room that is waited for.
	maxPreemptWaitNs = 600 * second
	maxAwaitedStopNs = 300 * second

	second = 1_000_000_000
)

// First priorities of the bands (paper §2.5).
const (
	batchPriority      = 100
	midPriority        = 116
	productionPriority = 120
	monitoringPriority = 360
)

// isProd tells whether work of that priority is placed by limits.
func isProd(priority int32) bool { return priority >= productionPriority }

// MayPreempt tells whether one priority may take the place of another: never
// within the production band, so that no cascade starts there (paper §2.5).
func MayPreempt(by, victim int32) bool {
	inBand := func(p int32) bool { return p >= productionPriority && p < monitoringPriority }
	if takesItsLike() {
		return victim <= by
	}
	return victim < by && !(inBand(by) && inBand(victim))
}

// takesItsLike reports whether work takes the place of work of its own priority.
func takesItsLike() bool { return mutant.Planted(mutant.PreemptsItsLike) }

// checkResources range-checks what is asked for or given.
func checkResources(r *borgpb.Resources, field string) *borgpb.Refusal {
	for _, q := range []struct {
		name     string
		n, limit int64
	}{
		{"cpu_milli", r.GetCpuMilli(), maxCPUMilli},
		{"mem_bytes", r.GetMemBytes(), maxMemBytes},
		{"disk_bytes", r.GetDiskBytes(), maxDiskBytes},
		{"disk_bytes_per_s", r.GetDiskBytesPerS(), maxDiskBytesPerS},
		{"ports", r.GetPorts(), maxPortCount},
	} {
		if q.n < 0 || q.n > q.limit {
			return invalid(field+"."+q.name, "%d is not in 0 to %d", q.n, q.limit)
		}
	}
	if n := len(r.GetDevices()); n > maxDevices {
		return limit(field+".devices", "%d kinds of devices; at most %d", n, maxDevices)
	}
	for _, name := range sortedKeys(r.GetDevices()) {
		if !validName(name) {
			return invalid(field+".devices", "%q is not a device name: want a-z, 0-9 and -", clip(name, 64))
		}
		if n := r.Devices[name]; n < 0 || n > maxDeviceCount {
			return invalid(field+".devices", "%s: %d is not in 0 to %d", name, n, maxDeviceCount)
		}
	}
	if n := len(r.GetDevices()) + len(r.GetDeviceMilli()); n > maxDevices {
		return limit(field+".device_milli", "%d kinds of devices; at most %d", n, maxDevices)
	}
	for _, name := range sortedKeys(r.GetDeviceMilli()) {
		n := r.DeviceMilli[name]
		switch {
		case !validName(name):
			return invalid(field+".device_milli", "%q is not a device name: want a-z, 0-9 and -", clip(name, 64))
		case n < 1 || n >= wholeDevice:
			return invalid(field+".device_milli", "%s: %d is not in 1 to %d; whole ones go into devices", name, n, wholeDevice-1)
		case r.Devices[name] != 0:
			return invalid(field+".device_milli", "%s is asked for whole too; a share or whole ones, not both", name)
		}
	}
	return nil
}

// checkCapacity range-checks what a machine has.
func checkCapacity(r *borgpb.Resources, field string) *borgpb.Refusal {
	if len(r.GetDeviceMilli()) > 0 {
		return invalid(field+".device_milli", "a machine has whole devices; shares of them are for who asks")
	}
	return checkResources(r, field)
}

// checkLabels bounds labels and annotations.
func checkLabels(labels, annotations map[string]string) *borgpb.Refusal {
	if len(labels) > maxLabels {
		return limit("labels", "%d labels; at most %d", len(labels), maxLabels)
	}
	for _, k := range sortedKeys(labels) {
		if r := checkLabelKey("labels", k); r != nil {
			return r
		}
		if len(labels[k]) > maxLabelValueBytes {
			return invalid("labels", "the value of %q is longer than %d bytes", k, maxLabelValueBytes)
		}
	}
	if n := len(annotations); n > maxAnnotations {
		return limit("annotations", "%d annotations; at most %d", n, maxAnnotations)
	}
	total := 0
	for _, k := range sortedKeys(annotations) {
		total += len(k) + len(annotations[k])
		if !selector.IsKey(k) {
			return oddKey("annotations", k)
		}
	}
	if total > maxAnnotationBytes {
		return limit("annotations", "%d bytes; at most %d", total, maxAnnotationBytes)
	}
	return nil
}

// checkLabelKey wants a key that a selector can name and that people see as it is.
func checkLabelKey(field, k string) *borgpb.Refusal {
	if len(k) == 0 || len(k) > maxLabelKeyBytes {
		return invalid(field, "the key %q is not 1 to %d bytes long", clip(k, 64), maxLabelKeyBytes)
	}
	if !selector.IsKey(k) {
		return oddKey(field, k)
	}
	return nil
}

func oddKey(field, k string) *borgpb.Refusal {
	return invalid(field, "the key %q has a blank, a control character or one of , = ! ( ) < >, is empty or ends in a dash; want letters, digits and . _ / -", clip(k, 64))
}

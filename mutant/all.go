package mutant

// The names. Each is used at one place in the code, and stands once in All.
const (
	FenceNotKept       Name = "fence-not-kept"
	FenceNotAsked      Name = "fence-not-asked"
	FenceWithoutIndex  Name = "fence-without-index"
	AbsenceStops       Name = "absence-stops"
	EndNotKept         Name = "end-not-kept"
	RebootForgotten    Name = "reboot-forgotten"
	StopLeaksProcess   Name = "stop-leaks-process"
	ZombieAdopted      Name = "zombie-adopted"
	HalfMadeKept       Name = "half-made-kept"
	RemovalNotRetried  Name = "removal-not-retried"
	BackoffForgotten   Name = "backoff-forgotten"
	DuplicateLeftAlone Name = "duplicate-left-alone"
	ForgetBeforeLogged Name = "forget-before-logged"
	ReportedOnce       Name = "reported-once"
	OrdersKept         Name = "orders-kept"

	OneWitness        Name = "one-witness"
	WindowNotGranted  Name = "window-not-granted"
	SilenceInherited  Name = "silence-inherited"
	GraceAnew         Name = "grace-anew"
	DutiesOutliveTerm Name = "duties-outlive-term"
	DownsUnbounded    Name = "downs-unbounded"
	DownsBeginAnew    Name = "downs-begin-anew"
	OutageForgotten   Name = "outage-forgotten"
	OutageBelieved    Name = "outage-believed"
	ReturnsIgnored    Name = "returns-ignored"
	UnaskedIsSilent   Name = "unasked-is-silent"
	BehindKeepsShare  Name = "behind-keeps-share"
	SharesStay        Name = "share-waits-for-next-term"
	HeirWaits         Name = "transfer-waits-out-election"

	SqueezeTakesProduction Name = "squeeze-takes-production"
	SqueezeHighestFirst    Name = "squeeze-highest-first"
	SqueezeByUseAlone      Name = "squeeze-by-use-alone"

	ReservationsForgotten Name = "reservations-forgotten"
	ProdOnReclaimed       Name = "prod-on-reclaimed"
	ReservationsAllLogged Name = "reservations-all-logged"

	StaleDownTaken         Name = "stale-down-taken"
	FinishedPends          Name = "finished-pends"
	RequestNotAsked        Name = "request-not-asked"
	RequestsLostOnLoad     Name = "requests-lost-on-load"
	AttemptReused          Name = "attempt-reused"
	StaleAssignmentTaken   Name = "stale-assignment-taken"
	ChangeNotRecorded      Name = "change-not-recorded"
	RollOutStuck           Name = "roll-out-stuck"
	RoomFreedEarly         Name = "room-freed-early"
	GangSplit              Name = "gang-split"
	DeviceSharedTwice      Name = "device-shared-twice"
	ForgivenForEver        Name = "forgiven-for-ever"
	DrainingTaken          Name = "draining-taken"
	TaintNotAsked          Name = "taint-not-asked"
	AttributeLimitNotAsked Name = "attribute-limit-not-asked"
	BanNotAsked            Name = "ban-not-asked"
	PreemptsItsLike        Name = "preempts-its-like"
	MovesUnproved          Name = "moves-unproved"
	FileVersionNotAsked    Name = "file-version-not-asked"
	BudgetNotAsked         Name = "budget-not-asked"
	PlacedCountsAsUp       Name = "placed-counts-as-up"
	WindowForgotten        Name = "window-forgotten"
	DeadlineIgnored        Name = "deadline-ignored"
	GoingForgotten         Name = "safe-to-drain-forgets-budget"
	PlacedOnLeaving        Name = "safe-to-drain-uses-drained"
	CapNotKept             Name = "cap-not-kept"
	CanaryForAll           Name = "canary-for-all"
	ProgressNotAsked       Name = "progress-not-asked"
	FailuresNotCounted     Name = "failures-not-counted"
	RollbackUnbounded      Name = "rollback-unbounded"
	SurgeNotAwaited        Name = "surge-not-awaited"
	SpreadNotAsked         Name = "spread-not-asked"
	GateNotAsked           Name = "gate-not-asked"

	OwnerFromRequest Name = "owner-from-request"
	RevokedFromCache Name = "revoked-from-cache"
	RaftForAll       Name = "raft-for-all"
	LinkNotAsked     Name = "link-not-asked"
	PowerNotAsked    Name = "power-not-asked"

	TaskWritesAnywhere Name = "task-writes-anywhere"

	ReadWithoutAsking   Name = "read-without-asking"
	AckBeforeSync       Name = "ack-before-sync"
	LogNotSynced        Name = "log-not-synced"
	VoteNotKept         Name = "vote-not-kept"
	VoteNotSynced       Name = "vote-not-synced"
	HeaderBeforeRecords Name = "header-before-records"
	RecordsAhead        Name = "records-ahead"
	TailCut             Name = "tail-cut"
	ConflictNotCut      Name = "conflict-not-cut"
	CompactedTooFar     Name = "compacted-too-far"

	StalledStays         Name = "stalled-stays"
	HardStateFirst       Name = "hard-state-first"
	VotersUncounted      Name = "voters-uncounted"
	LogNotHeld           Name = "log-not-held"
	CheckpointAtOnce     Name = "checkpoint-at-once"
	UncommittedUnbounded Name = "uncommitted-unbounded"

	RestoreNotHeld Name = "restore-not-held"
	FloorNotRaised Name = "floor-not-raised"
	UnknownStopped Name = "unknown-stopped"
	PhantomKept    Name = "phantom-kept"
	RestoredInPart Name = "restored-in-part"
	BrokenIsEmpty  Name = "broken-is-empty"

	DrainUnseen Name = "drain-unseen"

	OneBucketForAll    Name = "one-bucket-for-all"
	BorgletsInUserLane Name = "borglets-in-user-lane"
	CrashesUnbudgeted  Name = "crashes-unbudgeted"
	MuchForgotten      Name = "much-forgotten"
	WindowStaysSmall   Name = "window-stays-small"
	OneLineForReads    Name = "one-line-for-reads"
	ReadsTogether      Name = "reads-together"

	WatchLosesOnResume  Name = "watch-loses-on-resume"
	WatchGoesBack       Name = "watch-goes-back"
	WatchOverCompaction Name = "watch-over-compaction"
	WatchOverCheckpoint Name = "watch-over-checkpoint"

	LabelLost      Name = "label-lost"
	LabelNotJudged Name = "label-not-judged"
	LabelNotGiven  Name = "label-not-given"

	QuotaNotAsked     Name = "quota-not-asked"
	QuotaOfLatest     Name = "quota-of-latest"
	QuotaOversold     Name = "quota-oversold"
	QuotaNeverExpires Name = "quota-never-expires"

	CollapseNotAsked   Name = "collapse-not-asked"
	PreemptWaitNotKept Name = "preempt-wait-not-kept"
	StopNotHastened    Name = "stop-not-hastened"
	SlotTakenAgain     Name = "slot-taken-again"
	SkipNotDecided     Name = "skip-not-decided"
	MissedForgotten    Name = "missed-forgotten"
	OverlapIgnored     Name = "overlap-ignored"
	HoleStays          Name = "hole-stays"
	FailureTaken       Name = "failure-taken-for-finish"
	LeftWaiting        Name = "left-waiting-after-failure"
	SightKept          Name = "sight-kept"
	SharedWithAll      Name = "shared-with-all"
	DaemonStays        Name = "daemon-stays"
	DaemonElsewhere    Name = "daemon-elsewhere"
	CrashesForgotten   Name = "crashes-forgotten"

	CrashingServiceStays   Name = "crashing-service-stays"
	CrashingServiceWanders Name = "crashing-service-wanders"
	CrashingJobMoves       Name = "crashing-job-moves"
	CrashRowForgotten      Name = "crash-row-forgotten"

	QuarantineForEver    Name = "quarantine-for-ever"
	QuarantinePlacedBack Name = "quarantine-placed-back"

	DeadLeaveNothing Name = "dead-leave-nothing"
	GivenUpIsSaved   Name = "given-up-is-saved"
	SavesForEver     Name = "saves-for-ever"
	SaverHoldsDrain  Name = "saver-holds-drain"
	SaversTogether   Name = "savers-together"

	VolumeGivenUpInUse  Name = "volume-given-up-in-use"
	KeptVolumeElsewhere Name = "kept-volume-elsewhere"
	KeptVolumeDeleted   Name = "kept-volume-deleted"

	AllocNotInVolume  Name = "alloc-not-in-volume"
	AllocNetworkApart Name = "alloc-network-apart"
	CoreTakenTwice    Name = "core-taken-twice"

	NobodySpared       Name = "nobody-spared"
	AllTakeTheSpared   Name = "all-take-the-spared"
	PromisedNotCounted Name = "promised-not-counted"
)

// All is every mutant, those of the borglet first, then those of the master,
// of the cell, of who may do what, of the log, of disks and members, of a restore, of the scheduler, of
// overload, of watches, of labels, of quotas, and of kinds of jobs.
var All = []Mutant{
	{FenceNotKept, "A borglet keeps whom it obeys in memory only, and after a restart obeys a replica that is behind: it starts a task that has ended.",
		"1: https://github.com/kubernetes/kubernetes/issues/59848", "S8", "stale-replica"},
	{FenceNotAsked, "A borglet obeys orders that are older than others it has obeyed.",
		"+: https://github.com/kubernetes/kubernetes/issues/23731", "S8", "stale-replica"},
	{FenceWithoutIndex, "A borglet compares terms and not indexes, and obeys a replica of the same term that is behind.",
		Ours, "S8", "stale-replica"},
	{AbsenceStops, "A borglet stops what is not on a master's list.",
		"3: https://github.com/kubernetes/kubernetes/issues/24200", "S10", "full-outage"},
	{EndNotKept, "A borglet reports an end before it has written it down, and after a restart runs the task again.",
		"22: https://github.com/hashicorp/nomad/issues/5945", "S8", "unkept-end"},
	{RebootForgotten, "A borglet goes on with the copies of an earlier boot of its machine as if they were of this one.",
		"22: https://github.com/kubernetes/kubernetes/issues/37447", "S8", "borglet-restart"},
	{StopLeaksProcess, "A borglet takes a copy that it is told to stop for stopped, and its process goes on.",
		"23: https://github.com/hashicorp/nomad/issues/5593", "S8", "churn"},
	{ZombieAdopted, "A borglet that was restarted takes a process that has ended meanwhile for running.",
		"24: https://github.com/hashicorp/nomad/issues/23684", "L5", "borglet-restart"},
	{HalfMadeKept, "What is left of a container whose shim was killed before it had written it down is taken for gone.",
		"25: https://github.com/opencontainers/runc/issues/4534", "L10", "mishaps"},
	{RemovalNotRetried, "What cannot be taken away of a forgotten copy at once is left there.",
		"26: https://github.com/kubernetes/kubernetes/issues/112151", "L10", "mishaps"},
	{BackoffForgotten, "A borglet starts a service again at once, however often it ends.",
		"27: https://github.com/hashicorp/nomad/issues/15579", "S18", "churn"},
	{DuplicateLeftAlone, "A copy that was replaced while its machine was cut off is not stopped when the machine is back: two run.",
		"2: https://github.com/kubernetes/kubernetes/issues/61832", "L5", "outage"},
	{ForgetBeforeLogged, "A borglet is told to forget an end that is not in the log yet.",
		Ours, "S8", "retry"},
	{OrdersKept, "A machine at rest is asked the same again, whatever the cell has come to want of it.",
		Ours, "S28", "churn"},
	{ReportedOnce, "A link shard passes each difference on once: one that is lost on its way is lost for good.",
		"24: https://github.com/hashicorp/nomad/issues/20116", "L5", "retry"},

	{OneWitness, "A machine is down when one replica does not reach it.",
		Ours, "S17", "cut-machine"},
	{WindowNotGranted, "What a replica missed while there was no elected master counts when there is one again.",
		"8: https://github.com/etcd-io/etcd/issues/15247", "S17", "leader-flap"},
	{SilenceInherited, "Who polls a machine after the replica that did is dead counts its silence from when it polled it itself, once.",
		"6: https://github.com/hashicorp/nomad/issues/4666", "S17", "hosts"},
	{GraceAnew, "After an election machines have a minute to be heard.",
		"7: https://github.com/hashicorp/nomad/issues/1747", "L9", "hosts"},
	{DutiesOutliveTerm, "A replica that is elected again goes on where it was when it lost its election.",
		"5: https://github.com/hashicorp/nomad/issues/3840", "S17", "leader-flap"},
	{DownsUnbounded, "All machines that cannot be reached are called down at once.",
		"4: https://github.com/kubernetes/kubernetes/issues/24597", "S17", "outage"},
	{DownsBeginAnew, "A new master knows nothing of the machines that others have called down in the last minute.",
		Ours, "S17", "outage-flap"},
	{OutageForgotten, "A new master counts as out of reach what it was told of, and believes that the rest answers.",
		Ours, "S17", "outage-flap"},
	{OutageBelieved, "Machines are called down however few can still be reached, and nobody was asked.",
		"4: https://github.com/kubernetes/kubernetes/issues/24597", "S17", "outage"},
	{ReturnsIgnored, "Machines are called down that could not be connected to while many came back at once.",
		Ours, "S17", "returns"},
	{UnaskedIsSilent, "A replica that has asked nobody for a while takes that for a silence of the machines, and loses its share.",
		Ours, "L11", "new-cell"},

	{BehindKeepsShare, "A replica whose disk hangs goes on to poll machines, by the cell that it had before.",
		Ours, "L14", "old-cells"},
	{SharesStay, "Who shares the machines is decided once in a term: those of a replica that dies later are polled by nobody.",
		Ours, "L13", "shares"},
	{HeirWaits, "Who is asked to take over waits until an election is due anyway.",
		Ours, "L12", "transfers"},
	{SqueezeTakesProduction, "Where memory runs short production within its limits ends as anybody else.",
		Ours, "S45", "squeezed"},
	{SqueezeHighestFirst, "Where memory runs short the highest priority ends first.",
		Ours, "S45", "squeezed"},
	{SqueezeByUseAlone, "Where memory runs short no more end than until what the rest uses at the moment fits, whatever it reserves.",
		Ours, "S45", "squeezed"},
	{ReservationsForgotten, "A new elected master begins at the limits, whatever the cell holds of reservations.",
		Ours, "S24", "reclaimed"},
	{ProdOnReclaimed, "Production is placed by what production reserves, and relies on what others do not use at the moment.",
		Ours, "S24", "reclaimed"},
	{ReservationsAllLogged, "Whatever a task was estimated to need anew is logged, however little that moved.",
		Ours, "S43", "reclaimed"},

	{StaleDownTaken, "The cell does what an earlier elected master said of a machine.",
		"8: https://github.com/etcd-io/etcd/issues/12528", "S17", "late-duties"},
	{FinishedPends, "A batch task that has finished is pending again.",
		Ours, "S16", "churn"},
	{RequestNotAsked, "The cell does not look whether it has done a request before.",
		Ours, "S4", "retry"},
	{RequestsLostOnLoad, "A cell that is loaded from its records remembers no requests.",
		"16: https://github.com/hashicorp/nomad/pull/24412", "S3", "retry"},
	{AttemptReused, "An index that a resize cut off and another brought back counts its attempts from 1 again.",
		Ours, "S9", "churn"},
	{StaleAssignmentTaken, "The cell places a task that is not pending any more.",
		Ours, "S16", "schedulers"},
	{ChangeNotRecorded, "An order to stop a copy is not written to the records.",
		Ours, "S3", "unsynced"},
	{RollOutStuck, "A task that ends while an update restarts it counts as down for ever.",
		"30: https://github.com/hashicorp/nomad/issues/10465", "S6", "churn"},
	{GangSplit, "The cell places what fits of a gang.",
		Ours, "S20", "crowded"},
	{DeviceSharedTwice, "What somebody has of a device counts as free.",
		Ours, "S20", "crowded"},
	{ForgivenForEver, "Who is forgiven for a while when a taint appears may stay.",
		Ours, "S20", "crowded"},
	{DrainingTaken, "The cell does not look whether a machine is being emptied.",
		Ours, "S20", "crowded"},
	{TaintNotAsked, "Neither cell nor scheduler looks at taints.",
		Ours, "S20", "crowded"},
	{AttributeLimitNotAsked, "The cell does not look how many of a job are on machines with the same value of an attribute.",
		Ours, "S20", "limited"},
	{BanNotAsked, "Neither cell nor scheduler looks whether a package is banned.",
		Ours, "S20", "limited"},
	{PreemptsItsLike, "Work takes the place of work of the same priority, which takes it back.",
		"28: https://github.com/kubernetes/kubernetes/issues/130429", "S20", "crowded"},
	{RoomFreedEarly, "The room of a copy is free as soon as it is told to stop.",
		"23: https://github.com/hashicorp/nomad/issues/6980", "S6", "tight"},
	{MovesUnproved, "Each place of a plan is tested without the others: two are moved into the same room.",
		Ours, "S6", "tight"},
	{FileVersionNotAsked, "The cell does not look whether a file has the version that its writer saw.",
		Ours, "S22", "files"},
	{BudgetNotAsked, "Moves do not ask the disruption budgets of those who are moved.",
		Ours, "S23", "budgets"},
	{PlacedCountsAsUp, "For budgets a task is up as soon as it has a machine: the next one goes before it runs.",
		"19: https://github.com/etcd-io/etcd/issues/6114", "S23", "budgets"},
	{WindowForgotten, "A task that was drained or moved is not remembered as disturbed.",
		Ours, "S23", "budgets"},
	{DeadlineIgnored, "A drain waits for budgets when its deadline has passed.",
		"+: https://github.com/kubernetes/kubernetes/issues/66811", "S23", "budgets"},
	{GoingForgotten, "Which machines can go is said of each task by itself: those of its job that would go with it are not counted.",
		Ours, "S44", "budgets"},
	{PlacedOnLeaving, "Those who are displaced are given places on machines that go too, when it is said which can.",
		Ours, "S44", "budgets"},
	{CapNotKept, "An update disturbs more tasks than its max_disruptions allows.",
		Ours, "S31", "updates"},
	{CanaryForAll, "Who is no canary is placed with the spec that only canaries should try.",
		Ours, "S31", "updates"},
	{ProgressNotAsked, "An update whose tasks never come up rolls for ever, whatever its progress deadline.",
		"30: https://github.com/hashicorp/nomad/issues/10465", "S31", "updates"},
	{FailuresNotCounted, "An update goes on however often its tasks fail.",
		Ours, "S31", "updates"},
	{RollbackUnbounded, "A rollback takes all tasks down at once, whatever the batch of the update that it undoes.",
		"+: https://github.com/hashicorp/nomad/issues/14200", "S31", "updates"},
	{SurgeNotAwaited, "An update takes as many more tasks down as it has extra ones, whether those run or not.",
		"19: https://github.com/etcd-io/etcd/issues/6114", "S31", "updates"},
	{SpreadNotAsked, "An update that spreads takes down as many tasks of one failure domain as its batch has.",
		Ours, "S31", "updates"},
	{GateNotAsked, "An update with a gate goes on without an answer.",
		Ours, "S31", "updates"},

	{OwnerFromRequest, "Who asks is read from the request and not from the certificate that was shown.",
		"+: https://github.com/hashicorp/nomad/issues/6432", "S21", "strangers"},
	{RevokedFromCache, "A certificate that was believed once is believed from memory after it was revoked.",
		Ours, "S21", "strangers"},
	{RaftForAll, "Whoever has a certificate of the cell may send messages of raft.",
		"+: https://nvd.nist.gov/vuln/detail/CVE-2021-37218", "S1", "strangers"},
	{TaskWritesAnywhere, "A task may write the files of every user.",
		Ours, "S21", "files"},
	{LinkNotAsked, "The cell does not look whose the alloc set is that a job names.",
		Ours, "S21", "strangers"},
	{PowerNotAsked, "The cell does not look who was granted what a job asks for.",
		Ours, "S21", "strangers"},

	{ReadWithoutAsking, "A replica that was elected answers reads without asking the others whether it still is.",
		"9: https://github.com/etcd-io/etcd/issues/20418", "S5", "stopped"},
	{AckBeforeSync, "A follower acknowledges entries before they are on its disk.",
		"11: https://github.com/etcd-io/etcd/issues/14370", "S2", "stalls"},
	{LogNotSynced, "The log is written and not synced.",
		"11: https://github.com/etcd-io/etcd/issues/14370", "S2", "unsynced"},
	{VoteNotKept, "A replica does not write down for whom it voted.",
		Ours, "S1", "votes"},
	{VoteNotSynced, "Term and vote are synced only together with entries.",
		Ours, "S1", "votes"},
	{HeaderBeforeRecords, "What the records stand for is written before them and not with them.",
		"10: https://github.com/etcd-io/etcd/issues/13766", "S14", "torn"},
	{RecordsAhead, "The records hold one entry more than they say.",
		"10: https://github.com/etcd-io/etcd/issues/13766", "S14", "unsynced"},
	{TailCut, "A replica that is started takes the last entry of its log for torn and drops it.",
		"15: https://github.com/etcd-io/etcd/issues/11488", "S2", "unsynced"},
	{ConflictNotCut, "Entries that replace others on the disk leave those after them there.",
		Ours, "S2", "conflict"},
	{CompactedTooFar, "The log is dropped up to its end and not up to what the records stand for.",
		Ours, "S14", "short-log"},

	{StalledStays, "A replica whose disk hangs stays elected: it goes on to be heard, and the cell stands still.",
		"13: https://github.com/etcd-io/etcd/issues/3068", "S26", "hung-disks"},
	{HardStateFirst, "What is committed is written before the entries that it speaks of: where the disk is full in between, the replica cannot be started again.",
		"14: https://github.com/etcd-io/etcd/issues/3591", "S14", "full-disks"},
	{VotersUncounted, "The members are changed whoever of the new voters is there.",
		"19: https://github.com/etcd-io/etcd/issues/6114", "S25", "members"},
	{LogNotHeld, "The log is dropped while a checkpoint is on its way: the follower needs another one when it has it.",
		"20: https://github.com/hashicorp/raft/issues/212", "L7", "slow-checkpoints"},
	{CheckpointAtOnce, "A follower that refuses a checkpoint is made another one at once.",
		"20: https://github.com/cockroachdb/cockroach/issues/8629", "L7", "refused-checkpoints"},
	{UncommittedUnbounded, "The elected replica appends whatever it is asked to, although nobody confirms it.",
		"21: https://github.com/etcd-io/etcd/pull/10167", "S15", "no-majority"},

	{RestoreNotHeld, "A restored cell places tasks before all machines have told what they run.",
		"18: https://github.com/kubernetes/kubernetes/issues/131115", "S7", "restored"},
	{FloorNotRaised, "A restored cell goes on counting attempts from those of the checkpoint.",
		Ours, "S9", "restored"},
	{UnknownStopped, "A restored cell has stopped what it does not know.",
		"18: http://aurora.apache.org/documentation/latest/operations/backup-restore/", "S10", "restored"},
	{PhantomKept, "A restored cell goes on to believe in copies that their machines do not have.",
		"18: https://github.com/kubernetes/kubernetes/issues/131115", "S8", "restored"},
	{RestoredInPart, "The records of a checkpoint are written up to the first of a kind that came late, and no error is told.",
		"16: https://github.com/hashicorp/nomad/pull/24412", "S14", "restored"},
	{BrokenIsEmpty, "A checkpoint that cannot be read is taken for that of an empty cell.",
		"17: https://github.com/hashicorp/nomad/issues/9774", "S14", "restored"},

	{DrainUnseen, "The scheduler's arrays take a machine that is being emptied for one that takes tasks, and the cell refuses what it places there.",
		"29: https://github.com/hashicorp/nomad/issues/14850", "L3", "tainted"},

	{OneBucketForAll, "All users share one queue for the log: whoever asks for little waits behind who floods.",
		Ours, "L8", "flood"},
	{BorgletsInUserLane, "The reports of borglets wait for the log among what users ask for.",
		Ours, "S27", "flood"},
	{CrashesUnbudgeted, "Every crash of every task goes to the log, however many tasks of a job crash.",
		"27: https://github.com/hashicorp/nomad/issues/15579", "S27", "flood"},
	{MuchForgotten, "Who asks for much, and was answered all of it at once, is taken for one who asks for little.",
		Ours, "L8", "crowd"},
	{WindowStaysSmall, "When nobody asks for little any more the window stays as small as it was for him, until it has grown again.",
		Ours, "L8", "crowd"},
	{OneLineForReads, "All users share one line for reads that look at much: who reads now and then waits behind who reads without end.",
		Ours, "L8", "lists"},
	{ReadsTogether, "All reads that look at much are done at once, and what the log waits for finds no processor.",
		Ours, "L8", "lists"},

	{WatchLosesOnResume, "A watch that is resumed is not told of the first change after what it was told.",
		"12: https://github.com/etcd-io/etcd/issues/17529", "S13", "watchers"},
	{WatchGoesBack, "A watch that is resumed is told again of what it was told last.",
		"12: https://github.com/etcd-io/etcd/issues/15271", "S13", "watchers"},
	{WatchOverCompaction, "A watch is resumed from an index whose later changes are partly forgotten, and goes on with those that are left.",
		"12: https://github.com/etcd-io/etcd/issues/18089", "S13", "watchers"},
	{WatchOverCheckpoint, "A watch goes on over a checkpoint that took the place of the cell, as if nothing had changed on the way.",
		Ours, "S13", "watchers"},

	{LabelLost, "A change of labels is acknowledged and not made.",
		Ours, "S32", "labels"},
	{LabelNotJudged, "The cell lets in labels that its policy does not allow.",
		Ours, "S32", "labels"},
	{LabelNotGiven, "The cell does not give the labels that its policy has for those who have none.",
		Ours, "S32", "labels"},

	{QuotaNotAsked, "A change that raises what a job asks for is let in whatever its user was granted.",
		Ours, "S29", "quotas"},
	{QuotaOfLatest, "A job is charged by its present spec alone, while tasks still run another that asks for more.",
		Ours, "S29", "quotas"},
	{QuotaOversold, "A grant is held against what may be sold without what others were granted.",
		Ours, "S29", "quotas"},
	{QuotaNeverExpires, "A quota that has expired goes on letting work in.",
		Ours, "S29", "quotas"},

	{CollapseNotAsked, "Within a band that collapses work takes the place of work of a lower priority.",
		"28: https://github.com/kubernetes/kubernetes/issues/72124", "S20", "bands"},
	{PreemptWaitNotKept, "Who takes a place waits for as long as those whose place it was like.",
		Ours, "S20", "bands"},
	{StopNotHastened, "A copy that stops already keeps its time when somebody who may take its place waits for its room.",
		Ours, "S20", "bands"},
	{SlotTakenAgain, "The cell does not look whether a slot of a cron job was decided before: what a master says late is done a second time.",
		Ours, "S30", "late-slots"},
	{SkipNotDecided, "A slot that is skipped does not count as decided: it is run after all when the run before has ended.",
		Ours, "S30", "kinds"},
	{MissedForgotten, "Slots that went by while nobody was elected are neither run nor written down as skipped.",
		Ours, "S30", "kinds"},
	{OverlapIgnored, "A run of a cron job is begun although the one before is under way and the job forbids that.",
		Ours, "S30", "kinds"},
	{HoleStays, "A machine that comes to match gets no task of a daemon job that has a hole.",
		Ours, "S30", "kinds"},
	{DaemonStays, "A daemon job keeps its task on a machine that no longer matches.",
		Ours, "S30", "kinds"},
	{DaemonElsewhere, "Neither cell nor scheduler looks to which machine a task of a daemon job belongs.",
		Ours, "S30", "kinds"},
	{CrashingServiceStays, "A service that crashes again and again is started again on the same machine for ever, although another takes it.",
		Ours, "S42", "crashing-services"},
	{CrashingServiceWanders, "A service that crashes wherever it is is moved again and again.",
		Ours, "S42", "crashing-services"},
	{CrashingJobMoves, "A service all of whose tasks crash, on whatever machine, has each of them moved.",
		Ours, "S42", "crashing-services"},
	{CrashRowForgotten, "A task that crashed where it crashed before is kept away from there no longer than the first time.",
		Ours, "S42", "crashing-services"},
	{CrashesForgotten, "A task is placed again where its copies crashed, although others take it.",
		Ours, "S42", "crashes"},
	{QuarantineForEver, "A copy stays in quarantine when its time is over.",
		Ours, "S36", "quarantine"},
	{QuarantinePlacedBack, "A task whose copy is in quarantine is placed on that machine again, although others take it.",
		Ours, "S36", "quarantine"},
	{DeadLeaveNothing, "What an alloc leaves that is killed or cut off is not saved.",
		Ours, "S37", "savers"},
	{GivenUpIsSaved, "What a saver has given up counts as saved.",
		Ours, "S37", "savers"},
	{SavesForEver, "A saver is tried also when its time is over.",
		Ours, "S37", "savers"},
	{SaverHoldsDrain, "A drain waits for savers also when its deadline has passed.",
		Ours, "S23", "savers"},
	{SaversTogether, "Two savers work in the directory of one alloc at once.",
		Ours, "S37", "savers"},
	{VolumeGivenUpInUse, "A volume is given up although somebody works in it.",
		Ours, "S39", "volumes"},
	{KeptVolumeElsewhere, "A volume in which nobody works says nothing of where its task is placed.",
		Ours, "S39", "volumes"},
	{KeptVolumeDeleted, "A machine is told to delete what is kept, as soon as nobody works in it.",
		Ours, "S39", "volumes"},
	{AllocNotInVolume, "A volume of an alloc in which no task works is given up when it was kept for long enough, while the alloc is there.",
		Ours, "S39", "places"},
	{AllocNetworkApart, "Each copy in an alloc has a network of its own.",
		Ours, "S41", "places"},
	{CoreTakenTwice, "Processors that a task has alone count as free.",
		Ours, "S40", "places"},
	{FailureTaken, "A job starts after one that has failed for good as if that had finished, whatever it says of failures.",
		Ours, "S46", "followers"},
	{LeftWaiting, "A job that is to end with the one that it starts after waits for it for ever.",
		Ours, "S46", "followers"},
	{SightKept, "A watch goes on with what its user could read when it began, whatever the policy of visibility is now.",
		Ours, "S47", "private"},
	{SharedWithAll, "A job that is shared with a group is shown to all who are in any.",
		Ours, "S47", "private"},
	{NobodySpared, "Those whose tasks gave way often give way again, although nobody but production may take their places.",
		Ours, "S38", "giving-way"},
	{AllTakeTheSpared, "Whoever finds no other place takes that of those who gave way often.",
		Ours, "S38", "giving-way"},
	{PromisedNotCounted, "Those who are to give way and have not done so yet are not counted among those who did.",
		Ours, "S38", "giving-way"},
}

// Find returns the mutant of that name.
func Find(name Name) (Mutant, bool) {
	for _, m := range All {
		if m.Name == name {
			return m, true
		}
	}
	return Mutant{}, false
}

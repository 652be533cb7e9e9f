package borgmaster

import "borg/borgmaster/admission"

// callKind says what a call has a replica look at, and what bounds that. A call costs so many
// reads of its user (Core.Read) when it comes. One that looks at much has a turn meanwhile
// (admitter.turn), so that all of them leave half of the processors for other work, and the time
// of its turns is taken from the budget of its user.
type callKind int

const (
	// Nobody has said: it costs as much as any.
	isUnknown callKind = iota
	// A change: it is admitted, and waits for its place in the log.
	isChange
	// It looks at one object, or at figures that are at hand.
	looksAtOne
	// It looks at a page of a list, or at one job, alloc set or machine, in one turn.
	looksAtPage
	// It looks at all objects, all that is held in memory, or files of a journal: a walk, which
	// has a turn for a few milliseconds at a time.
	walks
	// It follows what changes, from a page of it on.
	follows
	// It goes on to other programs, as a stream of its own there. Their answers are bounded, and so
	// are the streams of a user.
	goesOn
	// What an administrator asks for, rarely.
	isRare
	// Calls of users that have bounds of their own.
	hasBounds
	// Users do not make it.
	ofPrograms
)

// cost is how many reads it counts as.
func (k callKind) cost() int64 {
	if k == looksAtOne {
		return 1
	}
	return admission.ListCost
}

// opens reports whether it takes one of the beginnings of streams and reads of much that a user has.
func (k callKind) opens() bool { return k == walks || k == follows || k == goesOn }

// calls are all calls of a master.
var calls = map[string]callKind{
	"/borgrpc.AuditService/Audit": walks,

	"/borgrpc.AuthorityService/ListAuthorities":   looksAtOne,
	"/borgrpc.AuthorityService/ReplaceAuthority":  isRare,
	"/borgrpc.AuthorityService/DropAuthorities":   isRare,
	"/borgrpc.AuthorityService/LookAtAuthorities": ofPrograms,

	"/borgrpc.CheckpointService/SaveCheckpoint":  isRare,
	"/borgrpc.CheckpointService/ListCheckpoints": isRare,

	"/borgrpc.ExecService/Exec": goesOn,

	"/borgrpc.FileService/ReadFile":   looksAtOne,
	"/borgrpc.FileService/ListFiles":  looksAtPage,
	"/borgrpc.FileService/WatchFiles": follows,
	"/borgrpc.NameService/Resolve":    looksAtPage,

	"/borgrpc.HistoryService/History":   walks,
	"/borgrpc.HistoryService/KeepUsage": ofPrograms,

	"/borgrpc.IdentityService/Renew":         looksAtPage,
	"/borgrpc.IdentityService/Join":          ofPrograms,
	"/borgrpc.IdentityService/CertifyTask":   ofPrograms,
	"/borgrpc.IdentityService/Invite":        isChange,
	"/borgrpc.IdentityService/CertifyMaster": hasBounds,
	"/borgrpc.IdentityService/GetAuthority":  looksAtOne,
	"/borgrpc.IdentityService/WhoAmI":        looksAtOne,
	"/borgrpc.IdentityService/ListUsers":     looksAtPage,
	"/borgrpc.IdentityService/CanI":          looksAtOne,

	"/borgrpc.MasterService/Mutate":    isChange,
	"/borgrpc.MasterService/Mutations": isChange,
	"/borgrpc.MasterService/Validate":  looksAtPage,
	// The cell is counted for all who ask alike; a user's own objects are looked at.
	"/borgrpc.MasterService/GetCell":             looksAtOne,
	"/borgrpc.MasterService/GetJob":              looksAtOne,
	"/borgrpc.MasterService/ListJobs":            looksAtPage,
	"/borgrpc.MasterService/ListTasks":           looksAtPage,
	"/borgrpc.MasterService/ListAllocs":          looksAtPage,
	"/borgrpc.MasterService/ListMachines":        looksAtPage,
	"/borgrpc.MasterService/ListPackageBans":     looksAtPage,
	"/borgrpc.MasterService/GetLabelPolicy":      walks,
	"/borgrpc.MasterService/GetPreemptionPolicy": looksAtOne,
	"/borgrpc.MasterService/GetVisibility":       looksAtOne,
	"/borgrpc.MasterService/ListQuotas":          looksAtPage,
	"/borgrpc.MasterService/Examine":             looksAtPage,
	"/borgrpc.MasterService/ListVolumes":         looksAtPage,
	"/borgrpc.MasterService/AddMachine":          isChange,
	"/borgrpc.MasterService/Why":                 looksAtPage,
	"/borgrpc.MasterService/SafeToDrain":         looksAtPage,
	"/borgrpc.MasterService/Events":              walks,
	"/borgrpc.MasterService/Logs":                goesOn,

	"/borgrpc.MemberService/ListMembers":      looksAtOne,
	"/borgrpc.MemberService/AddMember":        isRare,
	"/borgrpc.MemberService/PromoteMember":    isRare,
	"/borgrpc.MemberService/RemoveMember":     isRare,
	"/borgrpc.MemberService/TransferElection": isRare,

	"/borgrpc.ReplicaService/Report": ofPrograms,
	"/borgrpc.ReplicaService/Probe":  ofPrograms,

	// All machines and jobs of a restored cell are counted.
	"/borgrpc.RestoreService/GetRestore":   looksAtPage,
	"/borgrpc.RestoreService/ListUnknown":  goesOn,
	"/borgrpc.RestoreService/AdoptUnknown": isRare,
	"/borgrpc.RestoreService/StopUnknown":  isRare,

	"/borgrpc.SchedulingService/Follow":    ofPrograms,
	"/borgrpc.SchedulingService/Assign":    ofPrograms,
	"/borgrpc.SchedulingService/MoveTasks": ofPrograms,

	"/borgrpc.SecretService/SetSecret":      isChange,
	"/borgrpc.SecretService/ListSecrets":    looksAtPage,
	"/borgrpc.SecretService/RotateCellKey":  isRare,
	"/borgrpc.SecretService/ChangeCellKeys": isRare,

	"/borgrpc.WatchService/Watch": walks,
}

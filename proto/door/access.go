package door

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/mutant"
)

// access is which roles may make which call, of all services of a cell. What has
// no entry is for nobody; a test holds that each call has one. Handlers decide
// the rest: which user owns what, and what needs a capability.
var access = map[string][]identity.Role{
	"/borgrpc.MasterService/Mutate":          {identity.User, identity.Master, identity.Task},
	"/borgrpc.MasterService/Mutations":       {identity.User, identity.Task},
	"/borgrpc.MasterService/Validate":        {identity.User, identity.Task},
	"/borgrpc.MasterService/GetCell":         {identity.User, identity.Task},
	"/borgrpc.MasterService/GetJob":          {identity.User, identity.Task},
	"/borgrpc.MasterService/ListJobs":        {identity.User, identity.Task},
	"/borgrpc.MasterService/ListTasks":       {identity.User, identity.Task},
	"/borgrpc.MasterService/ListAllocs":      {identity.User, identity.Task},
	"/borgrpc.MasterService/ListMachines":    {identity.User},
	"/borgrpc.MasterService/ListPackageBans": {identity.User},
	"/borgrpc.MasterService/GetLabelPolicy":  {identity.User, identity.Task},
	"/borgrpc.MasterService/ListQuotas":      {identity.User, identity.Task},
	"/borgrpc.MasterService/ListVolumes":     {identity.User},
	"/borgrpc.MasterService/Examine":         {identity.User},

	"/borgrpc.MasterService/GetPreemptionPolicy": {identity.User},
	"/borgrpc.MasterService/GetVisibility":       {identity.User, identity.Task},

	"/borgrpc.MasterService/AddMachine":  {identity.User},
	"/borgrpc.MasterService/Why":         {identity.User, identity.Task},
	"/borgrpc.MasterService/SafeToDrain": {identity.User},
	"/borgrpc.MasterService/Events":      {identity.User},
	"/borgrpc.MasterService/Logs":        {identity.User},

	"/borgrpc.MemberService/ListMembers":      {identity.User},
	"/borgrpc.MemberService/AddMember":        {identity.User},
	"/borgrpc.MemberService/PromoteMember":    {identity.User},
	"/borgrpc.MemberService/RemoveMember":     {identity.User},
	"/borgrpc.MemberService/TransferElection": {identity.User},

	"/borgrpc.CheckpointService/SaveCheckpoint":  {identity.User},
	"/borgrpc.CheckpointService/ListCheckpoints": {identity.User},

	"/borgrpc.RestoreService/GetRestore":   {identity.User},
	"/borgrpc.RestoreService/ListUnknown":  {identity.User},
	"/borgrpc.RestoreService/AdoptUnknown": {identity.User},
	"/borgrpc.RestoreService/StopUnknown":  {identity.User},

	"/borgrpc.AuditService/Audit": {identity.User},

	"/borgrpc.HistoryService/History":   {identity.User},
	"/borgrpc.HistoryService/KeepUsage": {identity.Master},

	"/borgrpc.AuthorityService/ListAuthorities":   {identity.User, identity.Master},
	"/borgrpc.AuthorityService/ReplaceAuthority":  {identity.User},
	"/borgrpc.AuthorityService/DropAuthorities":   {identity.User},
	"/borgrpc.AuthorityService/LookAtAuthorities": {identity.Master},

	"/borgrpc.SchedulingService/Follow":    {identity.Scheduler},
	"/borgrpc.SchedulingService/Assign":    {identity.Scheduler},
	"/borgrpc.SchedulingService/MoveTasks": {identity.Scheduler},
	"/borgrpc.SchedulerService/Explain":    {identity.Master},
	"/borgrpc.SchedulerService/CheckDrain": {identity.Master},

	"/borgrpc.ReplicaService/Report":    {identity.Master},
	"/borgrpc.ReplicaService/Probe":     {identity.Master},
	"/borgrpc.RaftService/Send":         {identity.Master},
	"/borgrpc.RaftService/SendSnapshot": {identity.Master},

	"/borgrpc.IdentityService/Renew":         {identity.User, identity.Borglet, identity.Scheduler},
	"/borgrpc.IdentityService/Join":          {identity.Join},
	"/borgrpc.IdentityService/CertifyTask":   {identity.Borglet},
	"/borgrpc.IdentityService/Invite":        {identity.User},
	"/borgrpc.IdentityService/CertifyMaster": {identity.User},
	"/borgrpc.IdentityService/GetAuthority":  {identity.Master},
	"/borgrpc.IdentityService/WhoAmI":        {identity.User, identity.Task},
	"/borgrpc.IdentityService/ListUsers":     {identity.User},
	"/borgrpc.IdentityService/CanI":          {identity.User},

	"/borgrpc.SecretService/SetSecret":      {identity.User},
	"/borgrpc.SecretService/ListSecrets":    {identity.User},
	"/borgrpc.SecretService/RotateCellKey":  {identity.User},
	"/borgrpc.SecretService/ChangeCellKeys": {identity.Master},

	"/borgrpc.FileService/ReadFile":   {identity.User, identity.Task},
	"/borgrpc.FileService/ListFiles":  {identity.User, identity.Task},
	"/borgrpc.FileService/WatchFiles": {identity.User, identity.Task},
	"/borgrpc.NameService/Resolve":    {identity.User, identity.Task},
	"/borgrpc.WatchService/Watch":     {identity.User, identity.Task},

	"/borgrpc.ExecService/Exec": {identity.User},

	"/borgrpc.BorgletService/Describe": {identity.Master},
	"/borgrpc.BorgletService/Poll":     {identity.Master},
	"/borgrpc.BorgletService/Polls":    {identity.Master},
	"/borgrpc.BorgletService/ReadLog":  {identity.Master},
	"/borgrpc.BorgletService/ExecCopy": {identity.Master},
}

// Access is a copy of the table, for tests and for people.
func Access() map[string][]identity.Role { return maps.Clone(access) }

// Allowed returns an error that names the roles that may make a call, if the caller's may not.
func Allowed(method string, caller identity.Name) error {
	if mutant.Planted(mutant.RaftForAll) && strings.HasPrefix(method, "/borgrpc.RaftService/") {
		return nil
	}
	return allowed(access[method], method[strings.LastIndexByte(method, '/')+1:], caller)
}

func allowed(roles []identity.Role, what string, caller identity.Name) error {
	if slices.Contains(roles, caller.Role) {
		return nil
	}
	if len(roles) == 0 {
		return status.Errorf(codes.PermissionDenied, "%s is for nobody: it is not in the table of who may call what", what)
	}
	var names []string
	for _, r := range roles {
		names = append(names, string(r))
	}
	return status.Errorf(codes.PermissionDenied, "%s is for the role %s, and you are %s", what, strings.Join(names, " or "), caller.Words())
}

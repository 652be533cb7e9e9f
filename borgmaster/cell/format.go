package cell

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// BuildFormat is the latest format that this build can apply.
//
// Format 2: refusals are remembered under their request ids; users, capabilities
// and tokens.
//
// Format 3: devices have numbers, and can be shared; taints that evict and that
// advise; a task is kept away from where it crashed; gangs are held together; the
// batch queue; tasks are moved; secrets; what tasks may ask for; copies
// have reservations.
//
// Format 4: limits per the values of an attribute; constraints know the name of a
// machine; packages are banned; small files of users; a job names what is its
// asker's alone.
//
// Format 5: a cell knows that it was restored, hears its machines, and adopts or
// stops what they run; jobs have disruption budgets, and machines drain within them;
// machines can be declared lost, however many; a task is kept away from where it
// crashed for longer.
//
// Format 6: machines say which packages they have, and where they serve them.
//
// Format 7: what a job can be: quotas, cron and daemon jobs, updates with canaries, labels that
// are ruled and changed alone; what needs a capability.
//
// Format 8: updates surge, spread over domains and wait for a metric; bands collapse by
// a policy; copies in quarantine; files are pushed to running tasks, which say when they
// are ready; packages are brought with secrets.
//
// Format 9: what is the first format's in the model and was without effect until now:
// exclusive cores.
//
// Format 10: what stays on a machine's disk after its task; alloc sets are resized;
// tasks run in the allocs of their index; why a borglet ended a process; extra tasks stand in
// for who is down when their update was given up.
//
// Format 11: a service that crashes again and again is tried on another machine; crashes
// are counted beside the copies that are remembered.
//
// Format 12: where most tasks of a service crash, on several machines, none is tried on
// another; budgets of the replicated state; ports that others hold on a machine are left
// out there; why a process did not start or was killed; attempts of a task that fail in a
// row are further and further apart; what runs on a machine that was removed and is back is
// stopped.
const BuildFormat = 12

// BuildFormat is the latest format that this copy of the cell can apply.
func (c *Cell) BuildFormat() uint32 { return c.build }

// AsBuild makes the cell behave as a build that knows formats up to one only,
// and fails when it is past that: simulated cells have replicas of mixed builds.
func (c *Cell) AsBuild(format uint32) error {
	c.build = format
	if c.format > format {
		return newerFormat(c.format, format)
	}
	return nil
}

func newerFormat(cell, build uint32) error {
	return fmt.Errorf("the cell is of format %d, this build knows up to %d: use a newer build", cell, build)
}

// sinceFormat says in which format a field, an op or an enum value began, by
// full name. What is not listed began in format 1. A build must refuse what
// began later than the cell's format exactly as an older build that has never
// heard of it would, so everything added to a message that reaches the log is
// listed here.
var sinceFormat = map[protoreflect.FullName]uint32{
	"borg.Op.grant": FormatGrants, "borg.Op.revoke": FormatGrants, "borg.Op.add_token": FormatGrants, "borg.Op.use_token": FormatGrants,
	"borg.Grant.user": FormatGrants, "borg.Grant.capability": FormatGrants,
	"borg.Revoke.user": FormatGrants, "borg.Revoke.capability": FormatGrants, "borg.Revoke.certificates_wall_ns": FormatGrants,
	"borg.AddToken.hash": FormatGrants, "borg.AddToken.name": FormatGrants, "borg.AddToken.expires_wall_ns": FormatGrants,
	"borg.UseToken.hash": FormatGrants, "borg.UseToken.name": FormatGrants,

	"borg.Op.set_secret": FormatSecrets, "borg.Op.delete_secret": FormatSecrets, "borg.Op.reseal_secret": FormatSecrets, "borg.Op.use_cell_key": FormatSecrets,
	"borg.SetSecret.user": FormatSecrets, "borg.SetSecret.name": FormatSecrets, "borg.SetSecret.version": FormatSecrets, "borg.SetSecret.key_id": FormatSecrets, "borg.SetSecret.sealed": FormatSecrets,
	"borg.DeleteSecret.user": FormatSecrets, "borg.DeleteSecret.name": FormatSecrets,
	"borg.ResealSecret.user": FormatSecrets, "borg.ResealSecret.name": FormatSecrets, "borg.ResealSecret.version": FormatSecrets, "borg.ResealSecret.key_id": FormatSecrets, "borg.ResealSecret.sealed": FormatSecrets,
	"borg.UseCellKey.key_id": FormatSecrets,

	"borg.Op.set_task_note": FormatTasks, "borg.Principal.task": FormatTasks, "borg.JobSpec.submit_children": FormatTasks,
	"borg.SetTaskNote.user": FormatTasks, "borg.SetTaskNote.job": FormatTasks, "borg.SetTaskNote.index": FormatTasks, "borg.SetTaskNote.attempt": FormatTasks,
	"borg.SetTaskNote.text": FormatTasks, "borg.SetTaskNote.annotations": FormatTasks,

	"borg.Op.write_file": FormatFiles, "borg.Op.delete_file": FormatFiles,
	"borg.WriteFile.user": FormatFiles, "borg.WriteFile.name": FormatFiles, "borg.WriteFile.content": FormatFiles, "borg.WriteFile.if_version": FormatFiles,
	"borg.DeleteFile.user": FormatFiles, "borg.DeleteFile.name": FormatFiles, "borg.DeleteFile.if_version": FormatFiles,

	"borg.Resources.device_milli": formatDevices, "borg.Assignment.devices": formatDevices,
	"borg.DeviceGrant.name": formatDevices, "borg.DeviceGrant.numbers": formatDevices,
	"borg.MachineReport.reservations": formatReservations, "borg.TaskReservation.job_uid": formatReservations,
	"borg.TaskReservation.index": formatReservations, "borg.TaskReservation.attempt": formatReservations,
	"borg.TaskReservation.cpu_milli": formatReservations, "borg.TaskReservation.mem_bytes": formatReservations,
	"borg.Assign.enable":    formatQueue,
	"borg.Taint.prefer_not": formatTaints, "borg.SetMachine.set_taints": formatTaints, "borg.SetMachine.remove_taints": formatTaints,
	"borg.JobSpec.max_per": formatLimits, "borg.AllocSetSpec.max_per": formatLimits,
	"borg.Op.ban_package": FormatBans, "borg.Op.unban_package": FormatBans,
	"borg.BanPackage.name": FormatBans, "borg.BanPackage.digest": FormatBans, "borg.BanPackage.machine": FormatBans, "borg.BanPackage.expires_wall_ns": FormatBans,
	"borg.UnbanPackage.name": FormatBans, "borg.UnbanPackage.digest": FormatBans, "borg.UnbanPackage.machine": FormatBans,
	"borg.Op.move_tasks": formatMoves, "borg.MoveTasks.moves": formatMoves, "borg.MoveTasks.placement": formatMoves,
	"borg.MoveTasks.copy_index": formatMoves, "borg.MoveTasks.config_hash": formatMoves, "borg.MoveTasks.build": formatMoves,

	"borg.Op.set_quota": FormatQuotas, "borg.Op.delete_quota": FormatQuotas, "borg.Op.set_quota_policy": FormatQuotas, "borg.Op.set_task_limits": FormatQuotas,
	"borg.SetQuota.user": FormatQuotas, "borg.SetQuota.band": FormatQuotas, "borg.SetQuota.limit": FormatQuotas, "borg.SetQuota.expires_wall_ns": FormatQuotas,
	"borg.DeleteQuota.user": FormatQuotas, "borg.DeleteQuota.band": FormatQuotas,
	"borg.SetQuotaPolicy.enforce": FormatQuotas, "borg.SetQuotaPolicy.oversell": FormatQuotas, "borg.Oversell.band": FormatQuotas, "borg.Oversell.milli": FormatQuotas,
	"borg.SetTaskLimits.user": FormatQuotas, "borg.SetTaskLimits.min": FormatQuotas, "borg.SetTaskLimits.default": FormatQuotas, "borg.SetTaskLimits.max": FormatQuotas,
	"borg.Band.BAND_UNSPECIFIED": FormatQuotas, "borg.Band.BAND_FREE": FormatQuotas, "borg.Band.BAND_BATCH": FormatQuotas,
	"borg.Band.BAND_MID": FormatQuotas, "borg.Band.BAND_PRODUCTION": FormatQuotas, "borg.Band.BAND_MONITORING": FormatQuotas,

	"borg.JobSpec.disruption_budget": FormatBudgets,
	"borg.DisruptionBudget.max_down": FormatBudgets, "borg.DisruptionBudget.max_per_task": FormatBudgets, "borg.DisruptionBudget.window_ns": FormatBudgets,
	"borg.DrainMachine.deadline_ns": FormatBudgets, "borg.DrainMachine.now": FormatBudgets,

	"borg.MachineSpec.packages": FormatPackages, "borg.MachinePackages.port": FormatPackages, "borg.MachinePackages.digests": FormatPackages,
	"borg.SetMachine.packages": FormatPackages,
	"borg.PackageChange.port":  FormatPackages, "borg.PackageChange.add": FormatPackages, "borg.PackageChange.remove": FormatPackages,

	"borg.TaskSpec.relax": FormatPermissions, "borg.Relax.system_calls": FormatPermissions, "borg.Relax.user_ids": FormatPermissions,
	"borg.Op.control_update": FormatUpdates, "borg.ControlUpdate.user": FormatUpdates, "borg.ControlUpdate.name": FormatUpdates,
	"borg.ControlUpdate.verb": FormatUpdates, "borg.ControlUpdate.update_uid": FormatUpdates,
	"borg.UpdatePolicy.order": FormatUpdates, "borg.UpdatePolicy.watch_ns": FormatUpdates, "borg.UpdatePolicy.max_failed": FormatUpdates,
	"borg.UpdatePolicy.progress_deadline_ns": FormatUpdates, "borg.UpdatePolicy.canaries": FormatUpdates, "borg.UpdatePolicy.canary_watch_ns": FormatUpdates,
	"borg.UpdatePolicy.auto_rollback": FormatUpdates, "borg.UpdatePolicy.close_after_ns": FormatUpdates, "borg.UpdatePolicy.pulse_ns": FormatUpdates,
	"borg.UpdatePolicy.no_neighbours": FormatUpdates,
	"borg.UPDATE_ORDER_UNSPECIFIED":   FormatUpdates, "borg.UPDATE_ORDER_INDEX": FormatUpdates, "borg.UPDATE_ORDER_REVERSE": FormatUpdates,
	"borg.UPDATE_VERB_UNSPECIFIED": FormatUpdates, "borg.UPDATE_VERB_PROMOTE": FormatUpdates, "borg.UPDATE_VERB_PAUSE": FormatUpdates, "borg.UPDATE_VERB_RESUME": FormatUpdates,
	"borg.UPDATE_VERB_ABORT": FormatUpdates, "borg.UPDATE_VERB_ROLLBACK": FormatUpdates, "borg.UPDATE_VERB_CLOSE": FormatUpdates, "borg.UPDATE_VERB_PULSE": FormatUpdates,
	"borg.CronSpec.starting_deadline_ns": FormatKinds, "borg.CronSpec.keep_finished": FormatKinds, "borg.CronSpec.keep_failed": FormatKinds,
	"borg.Op.fire_cron": FormatKinds, "borg.Op.suspend_cron": FormatKinds,
	"borg.FireCron.user": FormatKinds, "borg.FireCron.name": FormatKinds, "borg.FireCron.uid": FormatKinds, "borg.FireCron.version": FormatKinds,
	"borg.FireCron.slot_wall_ns": FormatKinds, "borg.FireCron.missed": FormatKinds, "borg.FireCron.manual": FormatKinds, "borg.FireCron.spec": FormatKinds,
	"borg.SuspendCron.user": FormatKinds, "borg.SuspendCron.name": FormatKinds, "borg.SuspendCron.suspend": FormatKinds,

	"borg.Op.hear_machines": FormatRestore, "borg.Op.end_hold": FormatRestore, "borg.Op.adopt_job": FormatRestore, "borg.Op.stop_unknown": FormatRestore,
	"borg.Op.declare_lost": FormatRestore, "borg.DeclareLost.for_ns": FormatRestore,
	"borg.HearMachines.machines": FormatRestore,
	"borg.HeardMachine.machine":  FormatRestore, "borg.HeardMachine.missing": FormatRestore, "borg.HeardMachine.found": FormatRestore, "borg.HeardMachine.unknown": FormatRestore,
	"borg.FoundCopy.report": FormatRestore, "borg.FoundCopy.version": FormatRestore, "borg.FoundCopy.ports": FormatRestore, "borg.FoundCopy.alloc": FormatRestore, "borg.FoundCopy.devices": FormatRestore, "borg.FoundCopy.machine": FormatRestore,
	"borg.AdoptJob.uid": FormatRestore, "borg.AdoptJob.user": FormatRestore, "borg.AdoptJob.name": FormatRestore, "borg.AdoptJob.spec": FormatRestore, "borg.AdoptJob.copies": FormatRestore,
	"borg.StopUnknown.machine": FormatRestore, "borg.StopUnknown.copies": FormatRestore,
	"borg.Op.set_labels": FormatLabels, "borg.Op.set_label_policy": FormatLabels,
	"borg.SetLabels.kind": FormatLabels, "borg.SetLabels.user": FormatLabels, "borg.SetLabels.name": FormatLabels, "borg.SetLabels.expect_version": FormatLabels,
	"borg.SetLabels.set_labels": FormatLabels, "borg.SetLabels.remove_labels": FormatLabels, "borg.SetLabels.set_annotations": FormatLabels, "borg.SetLabels.remove_annotations": FormatLabels,
	"borg.SetLabelPolicy.policy": FormatLabels, "borg.SetLabelPolicy.expect_version": FormatLabels, "borg.LabelPolicy.rules": FormatLabels,
	"borg.LabelRule.kinds": FormatLabels, "borg.LabelRule.key": FormatLabels, "borg.LabelRule.required": FormatLabels, "borg.LabelRule.forbidden": FormatLabels,
	"borg.LabelRule.default_value": FormatLabels, "borg.LabelRule.values": FormatLabels,
	"borg.LABELLED_UNSPECIFIED": FormatLabels, "borg.LABELLED_JOB": FormatLabels, "borg.LABELLED_ALLOC_SET": FormatLabels, "borg.LABELLED_MACHINE": FormatLabels,

	"borg.Op.set_preemption_policy": FormatPreemption, "borg.SetPreemptionPolicy.collapse": FormatPreemption,
	"borg.Assignment.victims_why": FormatPreemption, "borg.JobSpec.preempt_wait_ns": FormatPreemption, "borg.AllocSetSpec.preempt_wait_ns": FormatPreemption,
	"borg.PREEMPT_OWN": FormatPreemption, "borg.TaskSpec.notice_ns": FormatPreemption, "borg.TaskSpec.notice_signal": FormatPreemption,
	"borg.Op.quarantine_task": FormatQuarantine, "borg.Op.release_task": FormatQuarantine,
	"borg.QuarantineTask.user": FormatQuarantine, "borg.QuarantineTask.name": FormatQuarantine, "borg.QuarantineTask.index": FormatQuarantine,
	"borg.QuarantineTask.attempt": FormatQuarantine, "borg.QuarantineTask.for_ns": FormatQuarantine,
	"borg.ReleaseTask.user": FormatQuarantine, "borg.ReleaseTask.name": FormatQuarantine, "borg.ReleaseTask.index": FormatQuarantine, "borg.ReleaseTask.attempt": FormatQuarantine,
	"borg.TaskSpec.files": FormatPushed, "borg.PushedFile.name": FormatPushed, "borg.PushedFile.signal": FormatPushed,
	"borg.RELOAD_SIGNAL_UNSPECIFIED": FormatPushed, "borg.RELOAD_SIGNAL_HUP": FormatPushed, "borg.RELOAD_SIGNAL_USR1": FormatPushed, "borg.RELOAD_SIGNAL_USR2": FormatPushed,
	"borg.TaskSpec.ready": FormatReady, "borg.Package.credentials": FormatPackageCredentials,
	"borg.TaskSpec.network": FormatNetworks, "borg.AllocSetSpec.network": FormatNetworks, "borg.TaskReport.addr": FormatNetworks,
	"borg.NETWORK_UNSPECIFIED": FormatNetworks, "borg.NETWORK_MACHINE": FormatNetworks, "borg.NETWORK_OWN": FormatNetworks,

	"borg.UpdateJob.merge": FormatGiven,

	"borg.UnknownCopy.job_uid": FormatRestore, "borg.UnknownCopy.index": FormatRestore, "borg.UnknownCopy.attempt": FormatRestore, "borg.UnknownCopy.user": FormatRestore, "borg.UnknownCopy.job": FormatRestore, "borg.UnknownCopy.kind": FormatRestore, "borg.UnknownCopy.priority": FormatRestore, "borg.UnknownCopy.resources": FormatRestore, "borg.UnknownCopy.ports": FormatRestore, "borg.UnknownCopy.grace_ns": FormatRestore,

	"borg.UpdatePolicy.spread_by": FormatSurges, "borg.UpdatePolicy.surge": FormatSurges, "borg.UpdatePolicy.gate": FormatSurges,
	"borg.UPDATE_ORDER_SPREAD": FormatSurges,
	"borg.MetricGate.url":      FormatSurges, "borg.MetricGate.query": FormatSurges, "borg.MetricGate.least_micro": FormatSurges, "borg.MetricGate.most_micro": FormatSurges,
	"borg.MetricGate.fail_after_ns": FormatSurges,
	"borg.Op.judge_gate":            FormatSurges, "borg.JudgeGate.user": FormatSurges, "borg.JudgeGate.name": FormatSurges, "borg.JudgeGate.update_uid": FormatSurges,
	"borg.JudgeGate.verdict": FormatSurges, "borg.JudgeGate.words": FormatSurges,
	"borg.GATE_VERDICT_UNSPECIFIED": FormatSurges, "borg.GATE_VERDICT_PASS": FormatSurges, "borg.GATE_VERDICT_FAIL": FormatSurges, "borg.GATE_VERDICT_UNKNOWN": FormatSurges,

	"borg.Op.update_alloc_set": FormatSetUpdates, "borg.Op.resize_alloc_set": FormatSetUpdates,
	"borg.UpdateAllocSet.user": FormatSetUpdates, "borg.UpdateAllocSet.name": FormatSetUpdates, "borg.UpdateAllocSet.expect_version": FormatSetUpdates,
	"borg.UpdateAllocSet.labels": FormatSetUpdates, "borg.UpdateAllocSet.annotations": FormatSetUpdates,
	"borg.UpdateAllocSet.spec": FormatSetUpdates, "borg.UpdateAllocSet.merge": FormatSetUpdates,
	"borg.ResizeAllocSet.user": FormatSetUpdates, "borg.ResizeAllocSet.name": FormatSetUpdates,
	"borg.ResizeAllocSet.expect_version": FormatSetUpdates, "borg.ResizeAllocSet.allocs": FormatSetUpdates,
	"borg.TaskSpec.volumes": FormatVolumes, "borg.AllocSetSpec.volumes": FormatVolumes, "borg.RemoveMachine.give_up_volumes": FormatVolumes, "borg.DrainMachine.give_up_volumes": FormatVolumes,
	"borg.Volume.name": FormatVolumes, "borg.Volume.path": FormatVolumes, "borg.Volume.disk_bytes": FormatVolumes, "borg.Volume.keep_ns": FormatVolumes,
	"borg.Op.delete_volume": FormatVolumes, "borg.DeleteVolume.user": FormatVolumes, "borg.DeleteVolume.name": FormatVolumes,
	"borg.DeleteVolume.index": FormatVolumes, "borg.DeleteVolume.volume": FormatVolumes,
	"borg.MachineReport.volumes_gone": FormatVolumes, "borg.MachineReport.volumes_found": FormatVolumes,
	"borg.FoundVolume.name": FormatVolumes, "borg.FoundVolume.disk_bytes": FormatVolumes,
	"borg.VolumeName.user": FormatVolumes, "borg.VolumeName.job": FormatVolumes, "borg.VolumeName.index": FormatVolumes, "borg.VolumeName.volume": FormatVolumes,

	"borg.AllocSetSpec.saver": FormatSavers, "borg.Saver.task": FormatSavers, "borg.Saver.time_ns": FormatSavers,

	"borg.JobSpec.alloc_by_index": FormatAllocIndex,

	"borg.JobSpec.after_failure": FormatAfterFailure, "borg.AFTER_FAILURE_UNSPECIFIED": FormatAfterFailure,
	"borg.AFTER_FAILURE_WAIT": FormatAfterFailure, "borg.AFTER_FAILURE_RUN": FormatAfterFailure, "borg.AFTER_FAILURE_DIE": FormatAfterFailure,

	"borg.Exit.reason": FormatExitReasons,

	"borg.HeardMachine.left": FormatLeftovers,

	"borg.TaskReport.failures": FormatCrashingServices,

	"borg.TaskReport.oom_kills": FormatExitWays,

	"borg.TaskReport.held_ports": formatHeldPorts, "borg.HeldPort.port": formatHeldPorts, "borg.HeldPort.by": formatHeldPorts, "borg.HeldPort.left_ns": formatHeldPorts,

	"borg.TaskSpec.max_runtime_ns": FormatExitWays, "borg.TaskSpec.max_runtime_finishes": FormatExitWays,
	"borg.Exit.reason_code": FormatExitWays, "borg.Exit.oom_process": FormatExitWays, "borg.Exit.oom_bytes": FormatExitWays,

	"borg.Op.set_state_budget": FormatStateBudgets, "borg.SetStateBudget.user": FormatStateBudgets, "borg.SetStateBudget.amounts": FormatStateBudgets,
	"borg.StateAmount.measure": FormatStateBudgets, "borg.StateAmount.amount": FormatStateBudgets,

	"borg.SetQuota.only": formatNamedAmounts, "borg.SetTaskLimits.only": formatNamedAmounts,

	"borg.Op.set_visibility": FormatVisibility, "borg.SetVisibility.policy": FormatVisibility, "borg.SetVisibility.expect_version": FormatVisibility,
	"borg.Visibility.private": FormatVisibility, "borg.Visibility.groups": FormatVisibility,
	"borg.ShareGroup.name": FormatVisibility, "borg.ShareGroup.users": FormatVisibility,
}

// decode reads a message of the log. Bytes that are not one, and anything that
// the format does not know at any depth, are malformed.
func decode(data []byte, m proto.Message, format uint32) *borgpb.Refusal {
	if err := proto.Unmarshal(data, m); err != nil {
		// The text of the error is not the same in all builds.
		return malformed("not a %s", m.ProtoReflect().Descriptor().Name())
	}
	return knownMessage(m.ProtoReflect(), format)
}

// knownMessage walks everything that is set and that a format may not know.
func knownMessage(m protoreflect.Message, format uint32) *borgpb.Refusal {
	d := m.Descriptor()
	all := looksOf[d.FullName()]
	if all == nil {
		all = make(looksByName).add(d)
	}
	switch {
	case len(m.GetUnknown()) > 0:
		return malformed("%s has a field that format %d does not know", d.Name(), format)
	case !all.known(m, format):
		return malformed("%s has a field or value that format %d does not know", d.Name(), format)
	}
	return nil
}

// looks are the fields of a type of message that a format may not know, or whose values
// it may not know. All others are as old as the first format, and plain.
type looks struct {
	fields []look
	// Of those that exclude each other there is one at most, whose kind decides.
	oneofs []oneofLooks
}

type oneofLooks struct {
	oneof    protoreflect.OneofDescriptor
	byNumber map[protoreflect.FieldNumber]look
}

// look is a field, and since when it is known.
type look struct {
	field protoreflect.FieldDescriptor
	since uint32
	// Of its value, or of each in a list or map of them: those of a message, or since when
	// each of an enum is known. Nil: they are none.
	message *looks
	enum    map[protoreflect.EnumNumber]uint32
}

// looksByName are looks by name of the type, which may hold itself.
type looksByName map[protoreflect.FullName]*looks

// looksOf has those of all that an entry of the log may hold.
var looksOf = func() looksByName {
	all := make(looksByName)
	for _, m := range []proto.Message{&borgpb.Entry{}, &borgpb.Op{}, &borgpb.JobSpec{}, &borgpb.AllocSetSpec{}} {
		all.add(m.ProtoReflect().Descriptor())
	}
	return all
}()

func (all looksByName) add(d protoreflect.MessageDescriptor) *looks {
	if l := all[d.FullName()]; l != nil {
		return l
	}
	l := new(looks)
	all[d.FullName()] = l
	for i := range d.Oneofs().Len() {
		one := oneofLooks{d.Oneofs().Get(i), make(map[protoreflect.FieldNumber]look)}
		for i := range one.oneof.Fields().Len() {
			fd := one.oneof.Fields().Get(i)
			one.byNumber[fd.Number()] = all.look(fd)
		}
		l.oneofs = append(l.oneofs, one)
	}
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		if look := all.look(fd); fd.ContainingOneof() == nil && (look.since > 0 || !look.plain()) {
			l.fields = append(l.fields, look)
		}
	}
	return l
}

func (all looksByName) look(fd protoreflect.FieldDescriptor) look {
	l := look{field: fd, since: sinceFormat[fd.FullName()]}
	of := fd
	if fd.IsMap() {
		of = fd.MapValue()
	}
	switch of.Kind() {
	case protoreflect.MessageKind:
		l.message = all.add(of.Message())
	case protoreflect.EnumKind:
		l.enum = make(map[protoreflect.EnumNumber]uint32)
		for i := range of.Enum().Values().Len() {
			v := of.Enum().Values().Get(i)
			l.enum[v.Number()] = sinceFormat[v.FullName()]
		}
	}
	return l
}

// plain: any value is known.
func (l *look) plain() bool { return l.message == nil && l.enum == nil }

func (all *looks) known(m protoreflect.Message, format uint32) bool {
	if len(m.GetUnknown()) > 0 {
		return false
	}
	for i := range all.fields {
		if l := &all.fields[i]; m.Has(l.field) && !l.known(m, format) {
			return false
		}
	}
	for i := range all.oneofs {
		one := &all.oneofs[i]
		if fd := m.WhichOneof(one.oneof); fd != nil {
			if l := one.byNumber[fd.Number()]; !l.known(m, format) {
				return false
			}
		}
	}
	return true
}

// known looks at a field that is set.
func (l *look) known(m protoreflect.Message, format uint32) bool {
	if l.since > format || l.plain() {
		return l.since <= format
	}
	v := m.Get(l.field)
	switch {
	case l.field.IsMap():
		ok := true
		v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
			ok = l.knownValue(v, format)
			return ok
		})
		return ok
	case l.field.IsList():
		list := v.List()
		for i := range list.Len() {
			if !l.knownValue(list.Get(i), format) {
				return false
			}
		}
		return true
	default:
		return l.knownValue(v, format)
	}
}

func (l *look) knownValue(v protoreflect.Value, format uint32) bool {
	if l.message != nil {
		return l.message.known(v.Message(), format)
	}
	since, is := l.enum[v.Enum()]
	return is && since <= format
}

// decodeOp reads one op of an entry, in room if it is plain. The ops that come by the
// thousand are walked by hand.
func decodeOp(data []byte, format uint32, room *submitOp) (*borgpb.Op, *borgpb.Refusal) {
	if op, ok := decodeSubmit(data, room); ok {
		return op, nil
	}
	op := new(borgpb.Op)
	if err := proto.Unmarshal(data, op); err != nil {
		return nil, malformed("not an Op")
	}
	what, known := "an op with", true
	switch o := op.Op.(type) {
	case nil:
		return nil, malformed("an op of no kind that format %d knows", format)
	case *borgpb.Op_SubmitJob:
		known = knownAround(op, format) && !unknown(o.SubmitJob)
	case *borgpb.Op_Assign:
		what, known = "Assign has", knownAround(op, format) && knownAssign(o.Assign, format)
	case *borgpb.Op_Reports:
		what, known = "Reports has", knownAround(op, format) && knownReports(o.Reports, format)
	default:
		known = knownMessage(op.ProtoReflect(), format) == nil
	}
	if !known {
		// Inner names depend on the order of the walk.
		return nil, malformed("%s a field or value that format %d does not know", what, format)
	}
	return op, nil
}

func unknown(m proto.Message) bool { return len(m.ProtoReflect().GetUnknown()) > 0 }

// knownAround looks at what an op has of any kind.
func knownAround(op *borgpb.Op, format uint32) bool {
	who := op.Principal
	if who == nil || unknown(op) {
		return !unknown(op)
	}
	_, role := borgpb.Role_name[int32(who.Role)]
	return role && !unknown(who) && (who.Task == "" || format >= FormatTasks)
}

func knownAssign(a *borgpb.Assign, format uint32) bool {
	if unknown(a) || len(a.Enable) > 0 && format < formatQueue {
		return false
	}
	for _, x := range a.Assignments {
		if unknown(x) {
			return false
		}
		for _, v := range x.Victims {
			if unknown(v) {
				return false
			}
		}
		if len(x.Devices) > 0 && format < formatDevices || x.VictimsWhy != "" && format < FormatPreemption {
			return false
		}
		for _, g := range x.Devices {
			if unknown(g) {
				return false
			}
		}
	}
	return true
}

func knownReports(r *borgpb.Reports, format uint32) bool {
	if unknown(r) {
		return false
	}
	for _, m := range r.Machines {
		if unknown(m) {
			return false
		}
		for _, t := range m.Tasks {
			if t.Addr != "" && format < FormatNetworks || t.GetExit().GetReason() != "" && format < FormatExitReasons ||
				t.Failures != 0 && format < FormatCrashingServices || (len(t.HeldPorts) > 0 || t.OomKills != 0) && format < formatHeldPorts || hasExitWay(t.Exit) && format < FormatExitWays {
				return false
			}
			if unknown(t) || (t.Exit != nil && unknown(t.Exit)) || slices.ContainsFunc(t.HeldPorts, func(h *borgpb.HeldPort) bool { return unknown(h) }) {
				return false
			}
		}
		if len(m.Reservations) > 0 && format < formatReservations {
			return false
		}
		for _, t := range m.Reservations {
			if unknown(t) {
				return false
			}
		}
	}
	return true
}

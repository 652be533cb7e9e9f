package sim

import (
	"fmt"
	"maps"
	"slices"
)

// Marks are the rare states that a run counts, and what each means. One that no
// seed comes to says that the faults do not go there.
var Marks = map[string]string{
	"all machines lost":                         "every machine of the cell is without power at once",
	"all replicas without power":                "all five replicas crash at once",
	"alloc placed":                              "an alloc of a set has a machine",
	"assignment refused":                        "the cell refused what a scheduler proposed",
	"borglet killed during a save":              "one of the two files of a record was written",
	"borglet took over copies":                  "a borglet found copies that an earlier one had started",
	"build too old":                             "a replica of an older build met a later format, and stops",
	"checkpoint installed":                      "a replica too far behind took over another's records",
	"checkpoint not wanted":                     "a received checkpoint was no longer needed",
	"checkpoint too old for a new member":       "a checkpoint was not sent to a member that it does not know",
	"checkpoint sent":                           "a replica sent its records to another",
	"client tries again":                        "a mutation was not answered at the first try",
	"clock of a machine steps":                  "the wall clock of a borglet steps by up to 90 s",
	"copy taken back":                           "a copy on a machine that returned goes on as it is",
	"crash during an append":                    "a log entry was written and not synced",
	"cut one way":                               "a replica hears others and they do not hear it, or the reverse",
	"digest logged":                             "the elected replica logged the digest of its cell",
	"disk cannot be read":                       "every read of a replica's disk fails for a while",
	"disk full":                                 "a replica's disk takes no more after so many bytes",
	"disk returns errors":                       "some writes or syncs of a replica's disk fail",
	"disk stall":                                "a sync takes up to a second",
	"checkpoint refused":                        "a replica can make no new files, and says so at once",
	"disk failed at a counted write":            "the one that a sweep has chosen",
	"disk hangs":                                "all syncs of some replicas hang for up to 4 s",
	"disk lost":                                 "the disk of a replica is lost, and another one takes its place",
	"election transferred":                      "an operator had another replica elected",
	"member joined":                             "a replica that is new became a learner",
	"member given its vote":                     "it had caught up",
	"member taken out":                          "a replica was taken out of the cell",
	"change of members refused":                 "what was left would not have been a majority, or not been safe",
	"removed replica was refused":               "a replica that was taken out heard so from another one",
	"appended as much as may be":                "nobody confirms, and no more is appended",
	"done after it was refused":                 "a try was refused, and a later one of the same request done",
	"duplicate stopped":                         "a machine returned with a copy that was replaced meanwhile",
	"file was of another version":               "a file was to be changed if it had a version that it had not",
	"file written by a task":                    "a task wrote or deleted a file of its user",
	"giant job":                                 "a job of hundreds of tasks",
	"first phase went on":                       "too little was acknowledged or elected in its time",
	"forged message refused":                    "who is no replica sent a message of raft",
	"format raised":                             "all replicas can apply a later format of the cell, and it is raised",
	"label refused by a rule":                   "the policy of labels was against what was asked",
	"labels changed alone":                      "labels of an object were changed, and nothing else",
	"update with a policy":                      "a job is updated with canaries, deadlines and the like",
	"task disturbed by an update with a policy": "a task is restarted or moved by such an update",
	"update rolled back":                        "a job returns to its last healthy spec",
	"canary runs":                               "a task tries a version that was not promoted",
	"refused for want of quota":                 "a job, or a change of one, would have passed what its user was granted",
	"quotas enforced or not":                    "an admin began or ended to enforce quotas",
	"quota granted":                             "an admin granted a quota",
	"let in by quota":                           "what a job asks for was raised while quotas were enforced",
	"quarantine begun":                          "a copy was put in quarantine",
	"placed with a copy in quarantine":          "a task was placed while a copy of it was in quarantine",
	"rules for labels changed":                  "an admin put another policy of labels in the place of the one before",
	"link clogged":                              "a link holds all for a while and then delivers it",
	"links cut one by one":                      "links are cut one after the other and healed in another order",
	"logged in again":                           "a user whose certificate was revoked has a new one",
	"machine cut off":                           "a machine is out of reach of some replicas or all",
	"machine declared down":                     "the log has it that a machine is down",
	"moves refused":                             "the cell refused a plan of moves that had become stale",
	"no room for a checkpoint":                  "a checkpoint could not be received because the disk failed",
	"old attempt still runs":                    "a copy runs that is no longer its task's current attempt",
	"placed beside a ban":                       "something is placed while a package is banned",
	"partition":                                 "the network is split in two",
	"records loaded again":                      "the cell is loaded from its records beside itself",
	"replica ended for its disk":                "a replica stopped because its disk did not keep what it wrote",
	"replica stepped back to an older build":    "an upgraded replica is restarted as the build before",
	"retry answered from memory":                "a repeated request was answered as it was at first",
	"revoked caller refused":                    "a call was made with a certificate that was revoked",
	"slow disk":                                 "each sync takes 5 to 50 ms for a while",
	"stale assignment refused":                  "a scheduler had decided on an older state",
	"stale fence refused":                       "a borglet refused a master that was no longer elected",
	"reservation below the limit":               "the log has it that a task reserves less than its limit",
	"reservation rose":                          "a task uses more than before, and reserves more",
	"placed in reclaimed resources":             "a task is placed on a machine that is full by limits",
	"device granted":                            "a task has a device, or a share of one",
	"job left the batch queue":                  "a batch job was enabled as all of it fits",
	"gang placed":                               "several tasks of a gang were placed",
	"taint forgiven":                            "a task stays on a machine with a taint that it tolerates",
	"taint evicts":                              "a task is stopped because of a taint of its machine",
	"task drained":                              "a task is stopped because its machine is emptied",
	"task failed often":                         "a task that fails again and again has failed 20 times",
	"drain came to its deadline":                "a machine is being emptied, and its deadline has passed",
	"drain held back by nothing":                "a task with a budget leaves a machine whose drain is forced",
	"task disturbed within its budget":          "a drain or a move takes a task down whose job has a budget",
	"task in an alloc":                          "a task was placed inside an alloc",
	"task limited by an attribute":              "a task was placed whose job limits itself per value of an attribute",
	"task moved":                                "a running task goes to another machine, for which room is proven",
	"task preempted":                            "a task is stopped for one of higher priority",
	"watch told to relist":                      "what a watcher missed is not held any more, or the replica does not know it",
	"watch cut off":                             "too much waited for a watcher that stalled",
	"watch resumed":                             "a watcher went on behind what it was told, perhaps at another replica",
	"watch resumed across an election":          "and another replica was elected meanwhile",
	"watch told at a checkpoint":                "a checkpoint took the place of the cell of a replica at which somebody watched",
	"link refused":                              "a user's job names an alloc set of another",
	"power refused":                             "a user's job asks for what he was not granted",
	"trespass refused":                          "a user asked for what belongs to another, or to the cell",
	"unknown outcome tried again":               "the elected replica lost its place with mutations under way",
	"machines declared lost":                    "an operator said that machines which cannot be reached are lost",
	"flood turned away":                         "a user who asks for far too much is asked to come back later",
	"waited for a place in vain":                "a mutation waited too long for a place in the log",
	"answered beside a flood":                   "others are served while one user floods, and nothing else is wrong",
	"crash storm":                               "tasks of one job crash again and again, more than 50 times in 2 s",
	"came back later":                           "a client waited as long as it was told, and asked again",
	"all disks lost":                            "the disks of all replicas were taken away",
	"old checkpoint restored":                   "the cell goes on from a checkpoint of before, in a new epoch",
	"acknowledged and lost with the disks":      "a mutation was acknowledged after the checkpoint, and is not there after the restore",
	"unknown job adopted":                       "an operator made a job of what runs and the restored cell did not know",
	"unknown copy stopped by an operator":       "or had it stopped",
	"struck when " + beforeAppend:               "an aimed crash came there; as are those below",
	"struck when " + afterAppend:                "",
	"struck when " + appliedNotKept:             "",
	"struck when " + duringInstall:              "",
	"struck when " + newlyElected:               "",
	"struck when " + fenceNotKept:               "",
	"struck when " + betweenSteps:               "",
	"struck when " + newerTerm:                  "",
	"struck when " + replacedEntries:            "",
	"struck when " + saidNotKept:                "",
}

// notRequired are marks that cannot be asked of a few hundred seeds, and why.
var notRequired = map[string]string{
	"done after it was refused":            "what a cell must not come to is no aim",
	"first phase went on":                  "one seed in hundreds needs it",
	"checkpoint too old for a new member":  "a member joins in the moment in which a new master has not applied its log",
	"moves refused":                        "a plan is a moment old when it comes to the log",
	"machines declared lost":               "only under an aim",
	"all disks lost":                       "only under an aim",
	"flood turned away":                    "only under an aim",
	"waited for a place in vain":           "only under an aim",
	"answered beside a flood":              "only under an aim",
	"crash storm":                          "only under an aim",
	"came back later":                      "who floods does not come back, and others need not",
	"old checkpoint restored":              "only under an aim",
	"acknowledged and lost with the disks": "only under an aim",
	"unknown job adopted":                  "only under an aim",
	"unknown copy stopped by an operator":  "only under an aim",
	"appended as much as may be":           "only under an aim",
	"disk failed at a counted write":       "only in a sweep",
	// Crashes are aimed there for planted bugs only (aim.go).
	"struck when " + newerTerm:       "only under an aim",
	"struck when " + replacedEntries: "only under an aim",
	"struck when " + saidNotKept:     "only under an aim",
}

// RequiredMarks are those that any few hundred seeds of 30 s come to.
func RequiredMarks() []string {
	required := maps.Clone(Marks)
	for name := range notRequired {
		delete(required, name)
	}
	return slices.Sorted(maps.Keys(required))
}

// mark counts a rare state.
func (w *World) mark(name string) {
	if _, ok := Marks[name]; !ok {
		panic(fmt.Sprintf("mark %q is not in the list of marks", name))
	}
	w.marks[name]++
}

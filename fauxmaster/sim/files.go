package sim

import (
	"fmt"
	"math/rand/v2"

	"borg/borgmaster/cell"
	"borg/history"
	"borg/identity"
	"borg/proto/borgpb"
)

// fileNames are the small files that each user may have.
var fileNames = []string{"leader", "conf/a", "conf/b"}

// filer is the part of a client that is about files. It has a stream of its own.
type filer struct {
	rand *rand.Rand
	// The task in whose name the op under way is asked for; none: the user's own.
	task     identity.Name
	issuedNs int64
	// Versions that it was told or shown last, by file; 0: it is not there.
	seen map[string]uint64
	// What is asked, for the history.
	asked history.FileRecord
}

func newFiler(w *World, i int) filer {
	return filer{rand: stream(w.cfg.Seed, fmt.Sprint("files ", i)), seen: map[string]uint64{}}
}

// fileOp writes or deletes a file, half of the time only if it is as it was seen;
// nil: not now. Often a task does it, sometimes with a file that is not its user's.
func (c *client) fileOp() *borgpb.Op {
	f, user := &c.files, c.user()
	if c.i == operatorClient || !chance(f.rand, c.w.swarm.filesPermille) {
		return nil
	}
	if tasks := c.w.truth.tasksOf(user); len(tasks) > 0 && f.rand.IntN(2) == 0 {
		// Its certificate begins at the cell's time.
		f.task = identity.Name{Cell: cellName, Role: identity.Task, ID: tasks[f.rand.IntN(len(tasks))].String()}
		f.issuedNs = c.w.truth.cell.WallNs()
		if f.rand.IntN(4) == 0 {
			user = userOf(c.i + 1 + f.rand.IntN(2))
		}
	}
	name := fileNames[f.rand.IntN(len(fileNames))]
	var want *uint64
	if version, ok := f.seen[user+"/"+name]; ok && f.rand.IntN(2) == 0 {
		want = &version
	}
	if f.rand.IntN(5) == 0 && (want == nil || *want != 0) {
		return &borgpb.Op{Op: &borgpb.Op_DeleteFile{DeleteFile: &borgpb.DeleteFile{User: user, Name: name, IfVersion: want}}}
	}
	content := fmt.Appendf(nil, "%s %d", c.name(), c.made)
	return &borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: user, Name: name, Content: content, IfVersion: want}}}
}

// tasksOf are the tasks of a user that have a place.
func (t *truth) tasksOf(user string) (tasks []cell.TaskID) {
	for j := range t.cell.Jobs() {
		if j.Key().User != user {
			continue
		}
		for _, task := range j.Tasks() {
			if task.Current() != nil {
				tasks = append(tasks, task.ID())
			}
		}
	}
	return tasks
}

// heard takes in the answer to what was asked about a file.
func (f *filer) heard(w *World, op *borgpb.Op, res *borgpb.Result) {
	if f.asked.Kind == 0 {
		return
	}
	r := f.asked
	r.Answered(w.now-second, res)
	if res.GetRefusal() == nil {
		f.seen[r.Key] = res.GetVersion()
		if r.Kind == history.DeleteFile {
			f.seen[r.Key] = 0
		}
	}
	if r.Answer == history.Conflict {
		w.mark("file was of another version")
	}
	if f.task != (identity.Name{}) && r.Answer == history.OK {
		w.mark("file written by a task")
	}
	w.story.addFile(r, op.RequestId, res.GetRefusal() != nil)
}

func (s *story) addFile(r history.FileRecord, id string, open bool) {
	if open {
		if s.openFiles == nil {
			s.openFiles = map[int]string{}
		}
		s.openFiles[len(s.files)] = id
	}
	s.files = append(s.files, r)
}

// looksAtFile chooses a file that a client reads, and returns what is to be called
// with the replica that answers.
func (w *World) looksAtFile(c *client) func(r *replicaNode) {
	user, name := c.user(), fileNames[w.story.rand.IntN(len(fileNames))]
	askedNs := w.now - second
	return func(r *replicaNode) {
		if w.now-second-askedNs > readPatienceNs || r.cell.Format() < cell.FormatFiles {
			return
		}
		version, content := uint64(0), []byte(nil)
		if f := r.cell.File(user, name); f != nil {
			version, content = f.Version(), f.Content()
		}
		key := user + "/" + name
		c.files.seen[key] = version
		w.story.files = append(w.story.files, history.ShowedFile(c.i, key, askedNs, w.now-second, version, content))
	}
}

// judgeFiles: S5, of what clients were told of files.
func (w *World) judgeFiles() history.Verdict {
	s := &w.story
	var records []history.FileRecord
	for i, r := range s.files {
		id, open := s.openFiles[i]
		done := open && w.truth.done[id].times > 0
		if r.Answer == history.Unknown && !done {
			// Who was turned away does not know, and nobody did it.
			continue
		}
		r.Late = done
		records = append(records, r)
	}
	return history.CheckFiles(records, historyLimit)
}

// fileState is a file as the ops of the log have made it, by a model of one line.
type fileState struct {
	version uint64
	content uint64
}

// fileDone: S22, a file changes if it had the version that was asked for, and has the
// content that was given and a version that none ever had.
func (t *truth) fileDone(op *borgpb.Op, res *borgpb.Result) {
	var key string
	var want *uint64
	var next fileState
	switch o := op.Op.(type) {
	case *borgpb.Op_WriteFile:
		key, want = o.WriteFile.User+"/"+o.WriteFile.Name, o.WriteFile.IfVersion
		next = fileState{res.GetVersion(), hashOf(o.WriteFile.Content)}
		if f := t.cell.File(o.WriteFile.User, o.WriteFile.Name); f != nil && f.Version() == next.version && hashOf(f.Content()) != next.content {
			t.w.fail("S22: %s wrote file %s, which has another content", op.RequestId, key)
		}
	case *borgpb.Op_DeleteFile:
		key, want = o.DeleteFile.User+"/"+o.DeleteFile.Name, o.DeleteFile.IfVersion
		if t.files[key].version == 0 {
			t.w.fail("S22: %s deleted file %s, which was not there", op.RequestId, key)
		}
	default:
		return
	}
	if was := t.files[key].version; want != nil && *want != was {
		t.w.fail("S22: %s, %s, is done if it has version %d, and it had version %d", op.RequestId, opName(op), *want, was)
	}
	if res.GetVersion() <= t.fileVersion {
		t.w.fail("S22: %s, %s, is told version %d, and %d was had before", op.RequestId, opName(op), res.GetVersion(), t.fileVersion)
	}
	t.fileVersion = res.GetVersion()
	t.files[key] = next
}

// filesAre: S22, at the end the files are those of the log.
func (t *truth) filesAre() {
	there := 0
	for i := range 3 {
		for f := range t.cell.Files(userOf(i), "") {
			there++
			if was := t.files[f.User()+"/"+f.Name()]; was != (fileState{f.Version(), hashOf(f.Content())}) {
				t.w.fail("S22: file %s/%s ends as version %d, and should be %+v", f.User(), f.Name(), f.Version(), was)
			}
		}
	}
	for _, was := range t.files {
		if was.version != 0 {
			there--
		}
	}
	if there != 0 {
		t.w.fail("S22: the cell has %+d files more than were written and not deleted", there)
	}
}

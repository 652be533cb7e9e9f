package container

import (
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

// Recover says how a run of an earlier borglet is, and follows it from then on.
func (r *Runtime) Recover(l *borglet.Launch) (borglet.Observed, error) {
	// Before anything is started that could be given the same.
	if o, err := readOrder(l.Dir); err == nil {
		// One of an earlier build may not say them, and limits may have changed since.
		o.Launch.Ports, o.Launch.Limits, o.Launch.AllocLimits = l.Ports, l.Limits, l.AllocLimits
		r.backend.remember(&o)
	}
	if e, ok := readExit(l.Dir, l.Run); ok {
		return observedExit(l.ID, l.Run, e), nil
	}
	followed := &run{id: l.ID, n: l.Run, dir: l.Dir}
	shim, _, held, err := holder(l.Dir)
	if err != nil {
		return borglet.Observed{}, err
	}
	if !held {
		// The shim may have ended well between the two looks.
		if e, ok := readExit(l.Dir, l.Run); ok {
			return observedExit(l.ID, l.Run, e), nil
		}
		o := r.lost(followed)
		if o.Kind == borglet.Running {
			r.keep(followed)
			r.wg.Go(func() { r.followTask(followed) })
		}
		return o, nil
	}
	followed.shim = shim
	o := borglet.Observed{ID: l.ID, Run: l.Run, Kind: borglet.Starting}
	if s, ok := readStarted(l.Dir, l.Run); ok {
		followed.task = s.Proc
		o.Kind, o.Pid, o.StartedWallNs = borglet.Running, int64(s.Proc.Pid), s.StartedWallNs
	}
	r.keep(followed)
	r.wg.Go(func() { r.follow(followed) })
	return o, nil
}

func (r *Runtime) keep(followed *run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs[followed.id] = followed
}

func (r *Runtime) drop(followed *run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs[followed.id] == followed {
		delete(r.runs, followed.id)
	}
}

// follow sees one run through: until it is said to run, until its shim has
// ended, and, if the shim died, until its task has.
func (r *Runtime) follow(f *run) {
	if !r.followStart(f) {
		return
	}
	if !r.followShim(f) {
		return
	}
	if e, ok := readExit(f.dir, f.n); ok {
		r.drop(f)
		r.emit(observedExit(f.id, f.n, e))
		return
	}
	o := r.lost(f)
	r.emit(o)
	if o.Kind == borglet.Running {
		r.followTask(f)
	} else {
		r.drop(f)
	}
}

// followStart returns true when the task's process is known or the shim has
// ended, and false when the runtime closes.
func (r *Runtime) followStart(f *run) bool {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		if s, ok := readStarted(f.dir, f.n); ok {
			r.mu.Lock()
			adopted := f.task.Pid != 0
			f.task = s.Proc
			r.mu.Unlock()
			if !adopted {
				r.emit(borglet.Observed{
					ID: f.id, Run: f.n, Kind: borglet.Running,
					Pid: int64(s.Proc.Pid), StartedWallNs: s.StartedWallNs,
				})
			}
			return true
		}
		shim, known, held, err := holder(f.dir)
		if err != nil || !held {
			return true
		}
		if known {
			r.mu.Lock()
			f.shim = shim
			r.mu.Unlock()
		}
		select {
		case <-ticker.C:
		case <-r.ctx.Done():
			return false
		}
	}
}

// followShim returns true when the shim has ended.
func (r *Runtime) followShim(f *run) bool {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		shim, known, held, err := holder(f.dir)
		if err != nil {
			r.cfg.Log.Error("a copy's lock cannot be read", "machine", r.cfg.Name, "err", err)
		}
		if err == nil && !held {
			r.mu.Lock()
			reap(f.shim.Pid)
			r.mu.Unlock()
			return true
		}
		if known {
			if h, err := shim.open(); err == nil {
				err = h.wait(r.ctx)
				h.close()
				if err == nil {
					reap(shim.Pid)
					continue
				}
			}
		}
		select {
		case <-ticker.C:
		case <-r.ctx.Done():
			return false
		}
	}
}

// lost says how a run is whose shim has died without a last word.
func (r *Runtime) lost(f *run) borglet.Observed {
	o := borglet.Observed{ID: f.id, Run: f.n, ShimLost: true}
	orphan, begun := r.backend.orphan(f.id, f.dir)
	s, ok := readStarted(f.dir, f.n)
	if !ok {
		s = started{Run: f.n, Proc: orphan, StartedWallNs: time.Now().UnixNano()}
	}
	if (!ok && orphan.Pid == 0) || (orphan.Pid != 0 && !begun) {
		// Whatever was prepared is taken away before the next run.
		if err := r.backend.kill(f.id, orphan); ignoreGone(err) != nil {
			r.cfg.Log.Warn("a run that had not begun cannot be killed", "machine", r.cfg.Name, "err", err)
		}
		o.Kind, o.Text, o.ShimLost = borglet.NotStarted, "its shim died before the task was started", false
		return o
	}
	r.mu.Lock()
	f.task = s.Proc
	r.mu.Unlock()
	if s.Proc.alive() {
		o.Kind, o.Pid, o.StartedWallNs = borglet.Running, int64(s.Proc.Pid), s.StartedWallNs
		return o
	}
	e := r.collect(f, s.Proc)
	return observedExit(f.id, f.n, e)
}

// followTask sees a task without a shim to its end.
func (r *Runtime) followTask(f *run) {
	r.mu.Lock()
	task := f.task
	r.mu.Unlock()
	if h, err := task.open(); err == nil {
		err := h.wait(r.ctx)
		h.close()
		if err != nil {
			return
		}
		reap(task.Pid)
	}
	e := r.collect(f, task)
	r.drop(f)
	r.emit(observedExit(f.id, f.n, e))
}

// collect does what a shim would have done at the end.
func (r *Runtime) collect(f *run, task proc) borglet.ExitFile {
	r.mu.Lock()
	killed := f.killed
	r.mu.Unlock()
	kills := r.backend.settle(f.id, task)
	e, _, ok := readStatus(f.dir)
	switch {
	case ok:
	case killed:
		e = borglet.ExitFile{Signal: int32(unix.SIGKILL), EndedWallNs: time.Now().UnixNano()}
	default:
		e = borglet.ExitFile{Unknown: true, EndedWallNs: time.Now().UnixNano()}
	}
	e.Run = f.n
	tellKills(&e, kills)
	if err := writeExit(f.dir, e); err != nil {
		r.cfg.Log.Error("exit.json cannot be written", "machine", r.cfg.Name, "err", err)
	}
	return e
}

package borgmaster

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// CertifyTask gives a borglet what a task on its machine needs to prove who it
// is, and its secrets. What the borglet says of the task counts for nothing: the copy must be
// current in the cell, and on that machine.
func (a *identityAPI) CertifyTask(ctx context.Context, req *borgrpc.CertifyTaskRequest) (*borgrpc.CertifyTaskResponse, error) {
	m := a.m
	// This replica may not have heard yet that the task was placed, or that it is
	// there no more.
	if err := m.readIndex(ctx); err != nil {
		return nil, err
	}
	task, spec, err := m.runsOn(req.GetCopy(), door.Caller(ctx).ID)
	if err != nil {
		return nil, err
	}
	switch {
	case req.GetFiles():
		return &borgrpc.CertifyTaskResponse{Files: m.filesFor(task.Job.User, spec)}, nil
	case req.GetPackageCredentials():
		secrets, err := m.open(task.Job.User, credentialsOf(spec))
		if err != nil {
			return nil, err
		}
		return &borgrpc.CertifyTaskResponse{Secrets: secrets}, nil
	}
	secrets, err := m.open(task.Job.User, spec.GetSecrets())
	if err != nil {
		return nil, err
	}
	name := m.conns.named(identity.Task, task.String())
	cert, err := m.issue(req.GetPublicKey(), name)
	if err != nil {
		return nil, err
	}
	return &borgrpc.CertifyTaskResponse{Certificate: cert, Secrets: secrets}, nil
}

// filesFor are the files that a task of the user sees, as far as they are there.
func (m *Master) filesFor(user string, spec *borgpb.TaskSpec) (files []*borgrpc.TaskFile) {
	m.cfg.Log.View(func(c *cell.Cell) {
		for _, named := range spec.GetFiles() {
			if f := c.File(user, named.GetName()); f != nil {
				files = append(files, &borgrpc.TaskFile{Name: f.Name(), Version: f.Version(), Content: f.Content()})
			}
		}
	})
	return files
}

// credentialsOf are the secrets by which a task's packages are brought, each once.
func credentialsOf(spec *borgpb.TaskSpec) (names []string) {
	for _, p := range spec.GetPackages() {
		if name := p.GetCredentials(); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// runsOn finds the task of a copy that is current and on that machine.
func (m *Master) runsOn(id *borgrpc.CopyID, machine string) (cell.TaskID, *borgpb.TaskSpec, error) {
	uid, err := cell.ParseUID(id.GetJobUid())
	if err != nil {
		return cell.TaskID{}, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	var task cell.TaskID
	var spec *borgpb.TaskSpec
	m.cfg.Log.View(func(c *cell.Cell) {
		j := c.JobByUID(uid)
		if j == nil {
			return
		}
		t := j.Task(id.GetIndex())
		if t == nil || t.Current() == nil || t.Attempt() != id.GetAttempt() || t.Current().Machine().Name() != machine {
			return
		}
		task, spec = t.ID(), t.Current().TaskSpec()
	})
	if spec == nil {
		return cell.TaskID{}, nil, status.Error(codes.PermissionDenied,
			fmt.Sprintf("the cell does not have attempt %d of task %d of job %s running on machine %s", id.GetAttempt(), id.GetIndex(), uid, machine))
	}
	return task, spec, nil
}

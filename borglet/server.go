package borglet

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/proto/borgrpc"
	"borg/tell/hostpath"
)

// Server is the borglet's service on the wire. It converts and calls; there
// are no rules in it.
type Server struct {
	borgrpc.UnimplementedBorgletServiceServer
	agent *Agent
}

// NewServer serves an Agent.
func NewServer(a *Agent) *Server { return &Server{agent: a} }

// Describe says what machine this is.
func (s *Server) Describe(context.Context, *borgrpc.DescribeRequest) (*borgrpc.DescribeResponse, error) {
	return s.agent.Describe(), nil
}

// Poll takes orders and answers the full state.
func (s *Server) Poll(ctx context.Context, req *borgrpc.PollRequest) (*borgrpc.PollResponse, error) {
	if req.GetFence().GetCellId() == "" {
		return nil, status.Error(codes.InvalidArgument, "a poll needs a fence with the id of the cell")
	}
	for _, d := range req.GetDesired() {
		_, err := IDOf(d.GetCopy())
		if err == nil {
			err = checkAlloc(d.GetAlloc())
		}
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "desired: %v", err)
		}
	}
	for _, stop := range req.GetStops() {
		if _, err := IDOf(stop.GetCopy()); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "stops: %v", err)
		}
	}
	resp, err := s.agent.Poll(ctx, req)
	var refused *refusal
	switch {
	case err == nil:
		return resp, nil
	case errors.As(err, &refused):
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, errStopped):
		return nil, status.Error(codes.Unavailable, err.Error())
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	default:
		return nil, s.internal(err)
	}
}

// internal is an error of the machine's, told without its paths. The log has them.
func (s *Server) internal(err error) error {
	text := s.agent.cfg.HostPaths.Hide(hostpath.Text(err))
	if text != err.Error() {
		if others, ok := s.agent.repeated.Allow(text, time.Now()); ok {
			s.agent.cfg.Log.Warn("a call failed, and its caller is not told of paths", "machine", s.agent.cfg.Name, "err", err, "others", others)
		}
	}
	return status.Error(codes.Internal, text)
}

// Polls takes orders and answers, again and again.
func (s *Server) Polls(stream borgrpc.BorgletService_PollsServer) error {
	return AnswerPolls(stream, func(req *borgrpc.PollRequest) (*borgrpc.PollResponse, error) {
		return s.Poll(stream.Context(), req)
	})
}

// ReadLog reads what a copy wrote.
func (s *Server) ReadLog(req *borgrpc.ReadLogRequest, stream borgrpc.BorgletService_ReadLogServer) error {
	id, err := IDOf(req.GetCopy())
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if err := checkRange(req); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	err = s.agent.readLog(stream.Context(), id, req, stream.Send)
	var unknown *unknownRun
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unknown):
		return status.Errorf(codes.OutOfRange, "%s on machine %s", unknown, s.agent.cfg.Name)
	case errors.Is(err, fs.ErrNotExist):
		return status.Errorf(codes.NotFound, "no log of copy %s on machine %s: it never started here, or its log has been removed since it ended", id, s.agent.cfg.Name)
	case stream.Context().Err() != nil:
		return status.FromContextError(stream.Context().Err()).Err()
	default:
		return s.internal(err)
	}
}

// ExecCopy runs a program in a copy that runs.
func (s *Server) ExecCopy(stream borgrpc.BorgletService_ExecCopyServer) error {
	start, err := stream.Recv()
	if err != nil {
		return err
	}
	id, err := IDOf(start.GetCopy())
	if err == nil {
		err = checkProgram(start.GetProgram())
	}
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	err = s.agent.exec(stream.Context(), id, start, execStream{stream.Send, stream.Recv})
	var full *execsFull
	switch {
	case err == nil:
		return nil
	case stream.Context().Err() != nil:
		return status.FromContextError(stream.Context().Err()).Err()
	case errors.Is(err, ErrNotRunning):
		return status.Errorf(codes.FailedPrecondition, "copy %s does not run on machine %s at this moment", id, s.agent.cfg.Name)
	case errors.As(err, &full):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, errStopped):
		return status.Error(codes.Unavailable, err.Error())
	default:
		return s.internal(err)
	}
}

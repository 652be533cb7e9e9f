package borglet

import (
	"errors"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// AnswerPolls answers the polls of one stream, one after the other, and puts back in
// what they and their answers leave out. Answers belong to it once poll returns them;
// it ends with the first error of poll's.
func AnswerPolls(stream borgrpc.BorgletService_PollsServer, poll func(*borgrpc.PollRequest) (*borgrpc.PollResponse, error)) error {
	var before *borgrpc.PollRequest
	var said *borgpb.MachineSpec
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if req.GetSameOrders() {
			if before == nil {
				return status.Error(codes.InvalidArgument, "the first poll of a stream has the same orders as the one before; there is none")
			}
			req.Machine, req.Desired, req.Stops = before.Machine, before.Desired, before.Stops
			req.Forget, req.Describe, req.Belief, req.Packages = before.Forget, before.Describe, before.Belief, before.Packages
			req.AllocNetworks = before.AllocNetworks
			req.KeepAllocs = before.KeepAllocs
			req.KeepVolumes, req.DeleteVolumes = before.KeepVolumes, before.DeleteVolumes
			req.SameOrders = false
		}
		before = req
		resp, err := poll(req)
		if err != nil {
			return err
		}
		if resp.Spec != nil {
			if said == resp.Spec || proto.Equal(said, resp.Spec) {
				resp.Spec = nil
			} else {
				said = resp.Spec
			}
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

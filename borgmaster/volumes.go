package borgmaster

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/borgmaster/sight"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	defaultVolumes = 1_000
	maxVolumesTold = 10_000
)

// ListVolumes yields volumes, in pages, by whose they are. It is answered by the elected
// master, which alone knows what they keep.
func (a *masterAPI) ListVolumes(ctx context.Context, req *borgrpc.ListVolumesRequest) (*borgrpc.ListVolumesResponse, error) {
	return onElected(ctx, a.m, true,
		func(ctx context.Context) (*borgrpc.ListVolumesResponse, error) { return a.m.listVolumes(ctx, req) },
		func(ctx context.Context, conn *grpc.ClientConn) (*borgrpc.ListVolumesResponse, error) {
			return borgrpc.NewMasterServiceClient(conn).ListVolumes(ctx, req)
		})
}

func (m *Master) listVolumes(ctx context.Context, req *borgrpc.ListVolumesRequest) (*borgrpc.ListVolumesResponse, error) {
	if err := m.readIndex(ctx); err != nil {
		return nil, err
	}
	resp := &borgrpc.ListVolumesResponse{}
	err := m.viewMuch(ctx, func(c *cell.Cell) error {
		if !listVolumes(c, m.lens(ctx, c), req, resp) {
			return status.Errorf(codes.InvalidArgument, "after %q: no volume has such a key; give next_after of the page before", req.GetAfter())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	m.volumeUse.fill(time.Now(), resp.Volumes)
	return whole(resp, "volumes")
}

// listVolumes tells whether what to begin after is a key of volumes.
func listVolumes(c *cell.Cell, lens *sight.Lens, req *borgrpc.ListVolumesRequest, resp *borgrpc.ListVolumesResponse) bool {
	resp.Index = c.Index()
	most := int(min(req.GetLimit(), maxVolumesTold))
	if most == 0 {
		most = defaultVolumes
	}
	last := ""
	all, known := c.VolumesAfter(strings.ReplaceAll(req.GetAfter(), "/", "\x00"))
	if !known {
		return false
	}
	for v := range all {
		key := v.Of().Job
		if req.GetMachine() != "" && v.Machine().Name() != req.Machine || req.GetUser() != "" && key.User != req.User || req.GetJob() != "" && key.Name != req.Job {
			continue
		}
		if !lens.Key(key) {
			continue
		}
		if len(resp.Volumes) == most {
			resp.NextAfter = last
			return true
		}
		resp.Volumes = append(resp.Volumes, c.VolumeProto(v))
		last = strings.ReplaceAll(cell.VolumeKey(v), "\x00", "/")
	}
	return true
}

// volumesBegan refuses what is about volumes in a cell that has none yet.
func volumesBegan(c *cell.Cell, op *borgpb.Op) *borgpb.Refusal {
	if format := c.Format(); format < cell.FormatVolumes &&
		(op.GetDeleteVolume() != nil || op.GetDrainMachine().GetGiveUpVolumes() || op.GetRemoveMachine().GetGiveUpVolumes()) {
		return refusal(borgpb.RefusalKind_REFUSAL_KIND_STALE, "", "the cell is of format %d, and knows volumes from format %d on: it is raised when all replicas run a build that knows them", format, cell.FormatVolumes)
	}
	return nil
}

package borgmaster

import (
	"context"

	"borg/borgmaster/cell"
	"borg/proto/borgrpc"
)

// ListPackageBans tells which packages are banned.
func (a *masterAPI) ListPackageBans(ctx context.Context, _ *borgrpc.ListPackageBansRequest) (*borgrpc.ListPackageBansResponse, error) {
	if err := a.m.readIndex(ctx); err != nil {
		return nil, err
	}
	resp := &borgrpc.ListPackageBansResponse{}
	if err := a.m.viewMuch(ctx, func(c *cell.Cell) error {
		resp.Index = c.Index()
		for b := range c.Bans() {
			resp.Bans = append(resp.Bans, &borgrpc.PackageBan{
				Name: b.Name(), Digest: b.Digest(), Machine: b.Machine(), By: b.By(), Reason: b.Reason(),
				SinceWallNs: b.SinceWallNs(), ExpiresWallNs: b.ExpiresWallNs(),
			})
		}
		return nil
	}); err != nil {
		return nil, err
	}
	return whole(resp, "bans of packages")
}

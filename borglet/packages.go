package borglet

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// Packages brings packages to the machine and keeps them. Its methods may be
// called from several goroutines.
type Packages interface {
	// Hold brings packages, by their digests, and keeps them until Drop. It returns
	// for each the directories that make it up, the lowest first. What is there
	// already costs nothing; what is not may take long, until ctx ends.
	// What has to be brought waits for its turn.
	// login is asked when something has to be brought; nil: the machine's own counts.
	Hold(ctx context.Context, turn Turn, holder string, digests []string, login PackageLogin) (trees [][]string, err error)
	// Drop ends what a holder keeps; it may keep nothing.
	Drop(holder string) error
	// Keep ends what all others keep.
	Keep(holders []string) error
	State() PackageState
	// Advise takes in what masters say of packages that are wanted here, by digest, in
	// place of what they said before.
	Advise(advice map[string]PackageAdvice)
	// Whole lists the digests of what is there whole, sorted: of more than limit those
	// that were wanted last. The same slice comes back for as long as it is the same.
	Whole(limit int) []string
}

// PackageLogin is who the machine is to registries when it brings a package, by its digest:
// the value of a secret; nil: what it is of its own.
type PackageLogin func(ctx context.Context, digest string) ([]byte, error)

// PackageAdvice is what masters say of where a package is to be brought from.
type PackageAdvice struct {
	// Peers are addresses of machines that have it, to be asked in this order.
	Peers []string
	// Origin: it is this machine's turn to ask where packages come from.
	Origin bool
}

// PackageState is how the packages of a machine stand. Counts are since the start.
type PackageState struct {
	// Digests of what is there whole.
	Digests []string
	// Sources are where packages come from, for people.
	Sources []string
	// Held is how many of them, or on their way, copies of tasks need.
	Held                         int
	Bytes, HeldBytes, LimitBytes int64
	// Bytes that came in all, those of other machines in them, and that were sent to
	// those.
	Fetched, FetchedBytes  int64
	PeerBytes, ServedBytes int64
	// Resumed downloads went on with what was there.
	Resumed int64
	Failed  int64
	// Dropped to make room.
	Dropped int64
}

// maxPackagesSaid is how many packages masters are told of, those that were wanted last.
const maxPackagesSaid = 128

// fetch brings what a start needs before it has a turn: it may take minutes, and
// others start meanwhile.
func (a *Agent) fetch(ctx context.Context, r Record) error {
	if len(r.Desired.GetSpec().GetPackages()) > 0 {
		if _, err := a.holdPackages(ctx, r); err != nil {
			return err
		}
	}
	_, err := a.networks.before(r)
	return err
}

// holdPackages brings the packages of a copy, and keeps them for it.
func (a *Agent) holdPackages(ctx context.Context, r Record) ([]LaunchPackage, error) {
	list := r.Desired.GetSpec().GetPackages()
	if len(list) == 0 {
		return nil, nil
	}
	// That this cannot be is said by who checks the launch.
	if !a.cfg.Runtime.Capabilities().OwnFiles || a.cfg.Packages == nil {
		return launchPackages(list, make([][]string, len(list))), nil
	}
	digests := make([]string, len(list))
	for i, p := range list {
		digests[i] = p.GetDigest()
	}
	trees, err := a.cfg.Packages.Hold(ctx, turnOf(r.Desired), r.ID.String(), digests, a.packageLogin(r))
	if err != nil && ctx.Err() != nil {
		return nil, errors.New("its packages were on their way when it was told to stop, or its borglet ended")
	}
	if err != nil {
		return nil, fmt.Errorf("bring its packages: %w", err)
	}
	return launchPackages(list, trees), nil
}

// packageLogin asks the masters for a secret when a package is to be brought that names
// one. It is not kept: what is there needs none, also while the masters are away.
func (a *Agent) packageLogin(r Record) PackageLogin {
	list := r.Desired.GetSpec().GetPackages()
	return func(ctx context.Context, digest string) ([]byte, error) {
		at := slices.IndexFunc(list, func(p *borgpb.Package) bool { return p.GetDigest() == digest && p.GetCredentials() != "" })
		if at < 0 {
			return nil, nil
		}
		name := list[at].GetCredentials()
		if a.cfg.Issuer == nil {
			return nil, fmt.Errorf("it is brought with secret %s, and this borglet asks no masters for secrets", name)
		}
		ctx, cancel := context.WithTimeout(ctx, issueBound)
		defer cancel()
		values, err := a.cfg.Issuer.PackageCredentials(ctx, r.ID)
		if err != nil {
			return nil, fmt.Errorf("get secret %s: %w", name, err)
		}
		if values[name] == nil {
			return nil, fmt.Errorf("get secret %s: masters do not give it", name)
		}
		return values[name], nil
	}
}

func launchPackages(list []*borgpb.Package, trees [][]string) []LaunchPackage {
	out := make([]LaunchPackage, len(list))
	for i, p := range list {
		out[i] = LaunchPackage{Name: p.GetName(), Path: filepath.Clean(p.GetPath()), Layers: trees[i]}
	}
	return out
}

// dropPackages lets the packages of a copy go.
func (a *Agent) dropPackages(id ID) error {
	if a.cfg.Packages == nil {
		return nil
	}
	return a.cfg.Packages.Drop(id.String())
}

// advise passes on what a master says of packages that are wanted here.
func (a *Agent) advise(list []*borgrpc.WantedPackage) {
	if a.cfg.Packages == nil || len(list) == 0 && !a.advised {
		return
	}
	a.advised = len(list) > 0
	advice := make(map[string]PackageAdvice, len(list))
	for _, w := range list {
		advice[w.Digest] = PackageAdvice{Peers: w.Peers, Origin: w.Origin}
	}
	a.cfg.Packages.Advise(advice)
}

// spec is the machine as it is now; the same message for as long as it is the same.
func (a *Agent) spec() *borgpb.MachineSpec {
	if a.cfg.Packages == nil {
		return a.cfg.Spec
	}
	whole := a.cfg.Packages.Whole(maxPackagesSaid)
	if len(whole) == 0 && a.cfg.PackagePort == 0 {
		return a.cfg.Spec
	}
	if said := a.said.GetPackages(); a.said == nil || !slices.Equal(said.Digests, whole) {
		a.said = proto.CloneOf(a.cfg.Spec)
		a.said.Packages = &borgpb.MachinePackages{Port: uint32(a.cfg.PackagePort), Digests: whole}
	}
	return a.said
}

// keepPackages lets those go that no copy here has: a borglet was killed after it
// had forgotten the copy.
func (a *Agent) keepPackages(records []Record) error {
	if a.cfg.Packages == nil {
		return nil
	}
	var live []string
	for _, r := range records {
		if r.Ended == 0 {
			live = append(live, r.ID.String())
		}
	}
	return a.cfg.Packages.Keep(live)
}

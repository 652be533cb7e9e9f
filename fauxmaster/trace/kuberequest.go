package trace

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// quantities are amounts by the names of Kubernetes; CPU in thousandths.
type quantities map[string]int64

func readQuantities(from map[string]string, asked bool) (quantities, error) {
	all := make(quantities, len(from))
	for _, name := range sortedKeys(from) {
		scale := int64(1)
		if name == "cpu" {
			scale = 1000
		}
		n, err := quantity(from[name], scale, asked)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all[name] = n
	}
	return all, nil
}

func (q quantities) add(o quantities) {
	for name, n := range o {
		q[name] = min(q[name]+n, 2*maxQuantity)
	}
}

func (q quantities) atLeast(o quantities) {
	for name, n := range o {
		q[name] = max(q[name], n)
	}
}

// request is what Kubernetes sets aside for a pod: the sum of the containers, at least
// what any container takes that runs before them, beside those that were started before
// it and go on (sidecars), and what the pod itself takes. What is said of the pod as a
// whole replaces the sum.
func (k *Kubernetes) request(p *kubePod) (*borgpb.Resources, error) {
	if len(p.Spec.Containers) == 0 {
		k.cell.note("pods that do not say their containers: they ask for nothing")
	}
	total, sidecars, before := make(quantities), make(quantities), make(quantities)
	for i := range p.Spec.Containers {
		q, err := p.Spec.Containers[i].asks(p.Status.Containers)
		if err != nil {
			return nil, err
		}
		total.add(q)
	}
	for i := range p.Spec.Init {
		c := &p.Spec.Init[i]
		q, err := c.asks(p.Status.Init)
		if err != nil {
			return nil, err
		}
		if c.Restart == "Always" {
			total.add(q)
			sidecars.add(q)
			before.atLeast(sidecars)
			continue
		}
		now := maps.Clone(sidecars)
		now.add(q)
		before.atLeast(now)
	}
	total.atLeast(before)
	whole, err := readQuantities(withDefaults(&p.Spec.Resources), true)
	if err != nil {
		return nil, err
	}
	maps.Copy(total, whole)
	over, err := readQuantities(p.Spec.Overhead, true)
	if err != nil {
		return nil, err
	}
	total.add(over)
	k.noteRequests(p, total)
	return k.resources(total, "requests of "), nil
}

// noteRequests counts what requests do not say.
func (k *Kubernetes) noteRequests(p *kubePod, total quantities) {
	beyond := func(r *kubeRequests) bool {
		for name, limit := range r.Limits {
			if r.Requests[name] != "" && r.Requests[name] != limit {
				return true
			}
		}
		return false
	}
	if beyond(&p.Spec.Resources) || slices.ContainsFunc(p.Spec.Containers, func(c kubeContainer) bool { return beyond(&c.Resources) }) {
		k.cell.note("pods whose limits are above their requests: they are placed by requests, as Kubernetes does")
	}
	if len(total) == 0 && len(p.Spec.Containers) > 0 {
		k.cell.note("pods that ask for nothing")
	}
}

// asks is what is set aside for a container: of one that is being resized the most of
// what it asks for, what it was given and what it still has.
func (c *kubeContainer) asks(states []kubeContainerState) (quantities, error) {
	all, err := readQuantities(withDefaults(&c.Resources), true)
	if err != nil {
		return nil, err
	}
	for i := range states {
		if states[i].Name != c.Name || c.Name == "" {
			continue
		}
		for _, has := range []map[string]string{states[i].Allocated, states[i].Resources.Requests} {
			q, err := readQuantities(has, true)
			if err != nil {
				return nil, err
			}
			all.atLeast(q)
		}
	}
	return all, nil
}

// withDefaults are requests; where there is only a limit, that is the request.
func withDefaults(r *kubeRequests) map[string]string {
	all := maps.Clone(r.Limits)
	if all == nil {
		all = make(map[string]string)
	}
	maps.Copy(all, r.Requests)
	return all
}

// resources makes ours of amounts. What is no CPU, memory or disk is a device. A machine
// has 16 kinds of them; those that pods ask for come first.
func (k *Kubernetes) resources(from quantities, what string) *borgpb.Resources {
	r := &borgpb.Resources{}
	names := sortedKeys(from)
	slices.SortStableFunc(names, func(a, b string) int { return k.unasked(a) - k.unasked(b) })
	for _, name := range names {
		n := from[name]
		switch {
		case n == 0:
		case name == "cpu":
			r.CpuMilli = n
		case name == "memory":
			r.MemBytes = n
		case name == "ephemeral-storage":
			r.DiskBytes = n
		case name == "pods":
		case strings.Contains(name, "/") && n <= maxOpenbGPUs && (len(r.Devices) < maxDeviceKinds || r.Devices[k.deviceName(name)] > 0):
			if r.Devices == nil {
				r.Devices = make(map[string]int64)
			}
			r.Devices[k.deviceName(name)] += n
		default:
			k.cell.note(what + brief(name))
		}
	}
	k.cell.bound(r)
	return r
}

// maxDeviceKinds is how many kinds of devices a machine may have.
const maxDeviceKinds = 16

func (k *Kubernetes) unasked(name string) int {
	if k.devices[name] {
		return 0
	}
	return 1
}

// findDevices looks up which devices pods ask for, and whose GPUs there are.
func (k *Kubernetes) findDevices() {
	for i := range k.pods {
		spec := &k.pods[i].Spec
		for _, all := range [][]kubeContainer{spec.Containers, spec.Init} {
			for j := range all {
				for name := range withDefaults(&all[j].Resources) {
					k.devices[name] = true
				}
			}
		}
	}
	seen := func(name string) {
		if strings.HasSuffix(name, "/gpu") {
			k.gpus[name] = true
		}
	}
	for name := range k.devices {
		seen(name)
	}
	for i := range k.nodes {
		for name := range k.nodes[i].Status.Allocatable {
			seen(name)
		}
		for name := range k.nodes[i].Status.Capacity {
			seen(name)
		}
	}
}

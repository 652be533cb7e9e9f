package trace

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"borg/proto/borgpb"
)

// bindBudgets finds the job that each disruption budget means. Budgets there select pods by label;
// one that selects all pods of one job and no others is the budget of that job.
func (k *Kubernetes) bindBudgets(groups map[string]*kubeGroup) map[*kubeGroup]*borgpb.DisruptionBudget {
	bound := make(map[*kubeGroup]*borgpb.DisruptionBudget)
	for i := range k.budgets {
		b := &k.budgets[i]
		var of *kubeGroup
		some, all := 0, false
		for _, key := range sortedKeys(groups) {
			g := groups[key]
			if g.owner.namespace != b.Meta.Namespace {
				continue
			}
			n := 0
			for j := range g.pods {
				if b.Spec.Selector.matches(g.pods[j].pod.Meta.Labels) {
					n++
				}
			}
			if n > 0 {
				some++
				of, all = g, n == len(g.pods)
			}
		}
		switch {
		case some == 0:
		case some > 1 || !all || bound[of] != nil || of.owner.kind == "DaemonSet":
			k.cell.note("disruption budgets that are of no single job: say disruption_budget in the job file")
		default:
			down, ok := b.down(int64(len(of.pods)))
			if !ok || down <= 0 {
				k.cell.note("disruption budgets that allow none, or cannot be read: here there is no such limit")
				continue
			}
			bound[of] = &borgpb.DisruptionBudget{MaxDown: uint32(min(down, maxIndex2011))}
		}
	}
	return bound
}

// down is how many of n pods may be down at once.
func (b *kubeBudget) down(n int64) (int64, bool) {
	if len(b.Spec.Max) > 0 {
		return shareOf(b.Spec.Max, n)
	}
	up, ok := shareOf(b.Spec.Min, n)
	return n - up, ok
}

// shareOf reads a number, or a percentage of n, rounded up.
func shareOf(raw json.RawMessage, n int64) (int64, bool) {
	text := strings.Trim(string(raw), `"`)
	percent, is := strings.CutSuffix(text, "%")
	v, err := strconv.ParseInt(percent, 10, 32)
	if err != nil || v < 0 || slices.Contains([]string{"", "null"}, text) {
		return 0, false
	}
	if is {
		return (v*n + 99) / 100, true
	}
	return v, true
}

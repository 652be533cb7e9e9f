package trace

import (
	"cmp"
	"strconv"
	"strings"
)

// version is a version number as programs give it: "1.24.0", "v5.15.0-91-generic".
type version struct {
	segments []int64
	// pre is what comes after a dash: such a version is before the one without.
	pre string
}

func readVersion(text string) (v version, ok bool) {
	text, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimSpace(text), "v"), "+")
	text, v.pre, _ = strings.Cut(text, "-")
	for part := range strings.SplitSeq(text, ".") {
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			return version{}, false
		}
		v.segments = append(v.segments, n)
	}
	return v, true
}

func (v version) at(i int) int64 {
	if i < len(v.segments) {
		return v.segments[i]
	}
	return 0
}

func (v version) compare(o version) int {
	for i := range max(len(v.segments), len(o.segments)) {
		if c := cmp.Compare(v.at(i), o.at(i)); c != 0 {
			return c
		}
	}
	switch {
	case v.pre == o.pre:
		return 0
	case v.pre == "":
		return 1
	case o.pre == "":
		return -1
	}
	return strings.Compare(v.pre, o.pre)
}

// versionMeets reports whether a version meets all of ">= 1.2, < 2" and the like. "~> 1.2"
// is at least 1.2 and below 2.
func versionMeets(text, wanted string) bool {
	v, ok := readVersion(text)
	if !ok {
		return false
	}
	for want := range strings.SplitSeq(wanted, ",") {
		want = strings.TrimSpace(want)
		number := strings.TrimLeft(want, "<>=!~ ")
		operator := strings.TrimSpace(want[:len(want)-len(number)])
		o, ok := readVersion(number)
		if !ok {
			return false
		}
		is := v.compare(o)
		if operator != "~>" {
			if !ordered(operator, is) {
				return false
			}
			continue
		}
		if is < 0 {
			return false
		}
		for i := range len(o.segments) - 1 {
			if v.at(i) != o.at(i) {
				return false
			}
		}
	}
	return true
}

package cell

import (
	"fmt"
	"slices"
	"testing"

	"borg/proto/borgpb"
)

func TestVisibilityBounds(t *testing.T) {
	group := func(name string, from, n int) *borgpb.ShareGroup {
		g := &borgpb.ShareGroup{Name: name}
		for i := range n {
			g.Users = append(g.Users, fmt.Sprint("u-", from+i))
		}
		return g
	}
	groups := func(n int) *borgpb.Visibility {
		v := &borgpb.Visibility{}
		for i := range n {
			v.Groups = append(v.Groups, group(fmt.Sprint("g-", i), i, 1))
		}
		return v
	}
	members := func(n int) *borgpb.Visibility {
		return &borgpb.Visibility{Groups: []*borgpb.ShareGroup{group("a", 0, n/2), group("b", 0, n-n/2)}}
	}
	for _, tt := range []struct {
		what   string
		policy *borgpb.Visibility
		want   borgpb.RefusalKind
	}{
		{"none", nil, 0},
		{"the most groups", groups(maxShareGroups), 0},
		{"a group more", groups(maxShareGroups + 1), borgpb.RefusalKind_REFUSAL_KIND_LIMIT},
		{"the most members", members(maxShareMembers), 0},
		{"a member more", members(maxShareMembers + 1), borgpb.RefusalKind_REFUSAL_KIND_LIMIT},
		{"an empty name", &borgpb.Visibility{Groups: []*borgpb.ShareGroup{group("", 0, 1)}}, borgpb.RefusalKind_REFUSAL_KIND_INVALID},
	} {
		if r := CheckVisibility(tt.policy); r.GetKind() != tt.want {
			t.Errorf("%s: %v, want %v", tt.what, r, tt.want)
		}
	}
}

// TestVisibilityIsKept: a cell that was loaded says of everybody what he may read as the one
// that was written down, in whatever order the groups were given.
func TestVisibilityIsKept(t *testing.T) {
	l := newTestLog(t)
	l.apply(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	l.apply(&borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: "root", Capability: string(Admin)}}})
	l.apply(&borgpb.Op{Op: &borgpb.Op_SetVisibility{SetVisibility: &borgpb.SetVisibility{Policy: &borgpb.Visibility{Private: true, Groups: []*borgpb.ShareGroup{
		{Name: "web", Users: []string{"zoe", "ann"}}, {Name: "ads", Users: []string{"ann"}},
	}}}}})
	loaded := reload(t, l.c)
	if !loaded.Private() {
		t.Fatal("the cell is open after a load")
	}
	for _, user := range []string{"ann", "zoe", "bob", "root"} {
		a, b := l.c.SightOf(user, l.c.Has(user, Admin)), loaded.SightOf(user, loaded.Has(user, Admin))
		if !a.Equal(&b) || a.All() != (user == "root") {
			t.Errorf("%s sees %+v, and after a load %+v", user, a, b)
		}
	}
	ann := loaded.SightOf("ann", false)
	if !slices.Equal(ann.groups, []string{"ads", "web"}) || !ann.Sees("zoe", map[string]string{ShareLabel: "ads"}) || ann.Sees("zoe", map[string]string{ShareLabel: "none"}) || ann.Sees("zoe", nil) {
		t.Errorf("ann sees %+v", ann)
	}
}

package pages

import (
	"encoding/json"
	"strings"
	"time"
)

// MarshalJSON writes the same data for programs: names with their units, values as
// they are, tables as lists of objects.
func (p *Page) MarshalJSON() ([]byte, error) {
	sections := map[string]any{}
	for _, s := range p.Sections {
		sections[key(s.Title, "")] = s.data()
	}
	findings := []map[string]string{}
	for _, f := range p.Verdict.Findings {
		findings = append(findings, map[string]string{"mood": string(f.Mood), "text": f.Text, "next": f.Next})
	}
	out := map[string]any{
		"program": p.Program, "title": p.Title, "build": p.Build, "made": p.Made.UTC().Format(time.RFC3339Nano),
		"verdict":  map[string]any{"mood": string(p.Verdict.Mood), "text": p.Verdict.Text, "findings": findings},
		"numbers":  facts(p.Numbers),
		"sections": sections,
	}
	if p.Notice != "" {
		out["notice"] = p.Notice
	}
	return json.Marshal(out)
}

func (s *Section) data() any {
	if s.Head == nil {
		return facts(s.Facts)
	}
	rows := []map[string]any{}
	for _, row := range s.Rows {
		one := map[string]any{}
		for i, v := range row {
			one[key(s.Head[i], v.Unit)] = v.Raw
		}
		rows = append(rows, one)
	}
	if len(s.Facts) == 0 && s.More == 0 {
		return rows
	}
	return map[string]any{"facts": facts(s.Facts), "rows": rows, "more": s.More}
}

func facts(all []Fact) map[string]any {
	out := map[string]any{}
	for _, f := range all {
		out[key(f.Name, f.Value.Unit)] = f.Value.Raw
	}
	return out
}

// key makes a name in JSON of one for people, with the unit last.
func key(name, unit string) string {
	var b strings.Builder
	gap := false
	for _, r := range strings.ToLower(name) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			if gap && b.Len() > 0 {
				b.WriteByte('_')
			}
			gap = false
			b.WriteRune(r)
			continue
		}
		gap = true
	}
	if unit != "" && !strings.HasSuffix(b.String(), unit) {
		b.WriteString("_" + unit)
	}
	return b.String()
}

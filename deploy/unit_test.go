package deploy

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// unit is a unit of systemd: section, name, values.
type unit struct {
	values map[string]map[string][]string
}

func readUnit(path string) (*unit, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	u := &unit{values: make(map[string]map[string][]string)}
	section := ""
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if line[0] == '[' && line[len(line)-1] == ']' {
			section = line[1 : len(line)-1]
			u.values[section] = make(map[string][]string)
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || section == "" || strings.HasSuffix(line, "\\") {
			return nil, fmt.Errorf("%s:%d: not a line NAME=VALUE of a section: %s", path, n, line)
		}
		u.values[section][name] = append(u.values[section][name], value)
	}
	return u, nil
}

// service is the last value of a name in the section of services.
func (u *unit) service(name string) string {
	values := u.values["Service"][name]
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

func (u *unit) seconds(name string, otherwise int) time.Duration {
	if n, err := strconv.Atoi(u.service(name)); err == nil {
		otherwise = n
	}
	return time.Duration(otherwise) * time.Second
}

package client

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"
)

// CellFile is the file .borg/cell.yaml: which cell this is and where its
// masters are.
type CellFile struct {
	Cell    string   `yaml:"cell"`
	CellID  string   `yaml:"cell_id,omitempty"`
	Masters []string `yaml:"masters"`
	// File with the certificate and key of who asks, and the authorities of the
	// cell; a relative path is from the directory of this file.
	Identity string `yaml:"identity,omitempty"`
	// Not empty: the cell is no real one, and this says what it is.
	Simulated string `yaml:"simulated,omitempty"`
}

// UserConfig is the user's file, ~/.config/borg/config.yaml.
type UserConfig struct {
	// Name of the cell that is meant when none is named.
	Cell  string              `yaml:"cell,omitempty"`
	User  string              `yaml:"user,omitempty"`
	Cells map[string]CellFile `yaml:"cells,omitempty"`
}

// ReadCellFile reads and checks a cell file.
func ReadCellFile(path string) (*CellFile, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read cell file: %w", err)
	}
	var f CellFile
	if err := decodeStrict(raw, &f); err != nil {
		return nil, fmt.Errorf("cell file %s: %w", path, err)
	}
	if err := f.validate(); err != nil {
		return nil, fmt.Errorf("cell file %s: %w", path, err)
	}
	return &f, nil
}

// WriteCellFile writes a cell file whole or not at all, with its directory.
func WriteCellFile(path string, f *CellFile) error {
	raw, err := f.Encode()
	if err != nil {
		return fmt.Errorf("cell file %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write cell file: %w", err)
	}
	next := path + ".new"
	if err := os.WriteFile(next, raw, 0o644); err != nil {
		return fmt.Errorf("write cell file: %w", err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("write cell file: %w", err)
	}
	return nil
}

// Encode is the cell file as it is written.
func (f *CellFile) Encode() ([]byte, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	return yaml.Marshal(f)
}

func (f *CellFile) validate() error {
	if len(f.Masters) == 0 {
		return errors.New("it names no masters; write masters: [host:port, ...]")
	}
	for _, m := range f.Masters {
		if err := checkAddr(m); err != nil {
			return fmt.Errorf("masters: %w", err)
		}
	}
	return nil
}

func checkAddr(addr string) error {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok && path != "" {
		return nil
	}
	if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
		return fmt.Errorf("%q is not an address; write host:port", addr)
	}
	return nil
}

func decodeStrict(raw []byte, into any) error {
	d := yaml.NewDecoder(bytes.NewReader(raw))
	d.KnownFields(true)
	err := d.Decode(into)
	var faults *yaml.TypeError
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &faults):
		var told []string
		for _, fault := range faults.Errors {
			told = append(told, ofGoType.ReplaceAllString(fault, "there is no field $1"))
		}
		return errors.New(strings.Join(told, "; "))
	}
	return err
}

// ofGoType is how the YAML decoder tells of a field that it does not know.
var ofGoType = regexp.MustCompile(`field (\S+) not found in type \S+`)

// Lookup says where to look for a cell.
type Lookup struct {
	// Value of --cell; first choice.
	Flag string
	// Value of $BORG_CELL.
	Env string
	// Name of the environment variable that Env is of, for people; empty: BORG_CELL.
	EnvName string
	// Path of the certificate file: the value of --identity, or of
	// $BORG_IDENTITY. Empty: as the cell file says.
	Identity string
	// What named that file, for people; empty: --identity.
	IdentityOrigin string
	// Directory in which .borg/cell.yaml may lie; empty: the present one.
	Dir string
	// Path of the user's config; empty: UserConfigPath().
	UserConfig string
}

// Place is a cell that was found.
type Place struct {
	CellFile
	// Path of the certificate file that belongs to it; empty: none is named.
	IdentityPath string
	// What named that file, for people; empty: what named the cell.
	IdentityOrigin string
	// Where it was found, for people: "--cell", "$BORG_CELL",
	// "./.borg/cell.yaml".
	Origin string
}

// NoCellError says that no cell was named anywhere.
type NoCellError struct {
	// Places that were looked at, in order, with what was there.
	Looked []string
}

func (e *NoCellError) Error() string {
	return "which cell? none is named; looked at, in this order:\n  " + strings.Join(e.Looked, "\n  ")
}

// UserConfigPath is where the user's config lies.
func UserConfigPath() string {
	dir, err := os.UserConfigDir()
	if err != nil {
		return filepath.Join(".config", "borg", "config.yaml")
	}
	return filepath.Join(dir, "borg", "config.yaml")
}

// ReadUserConfig reads the user's config; a missing one is empty.
func ReadUserConfig(path string) (*UserConfig, error) {
	var c UserConfig
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return &c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read user config: %w", err)
	}
	if err := decodeStrict(raw, &c); err != nil {
		return nil, fmt.Errorf("user config %s: %w", path, err)
	}
	for name, f := range c.Cells {
		if err := f.validate(); err != nil {
			return nil, fmt.Errorf("user config %s: cells: %s: %w", path, name, err)
		}
	}
	return &c, nil
}

// WriteUserConfig writes the user's config whole or not at all.
func WriteUserConfig(path string, c *UserConfig) error {
	raw, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("user config %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write user config: %w", err)
	}
	next := path + ".new"
	if err := os.WriteFile(next, raw, 0o644); err != nil {
		return fmt.Errorf("write user config: %w", err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("write user config: %w", err)
	}
	return nil
}

// Find finds the cell: --cell, $BORG_CELL, ./.borg/cell.yaml, the user's
// config, in that order.
func (l Lookup) Find() (*Place, error) {
	p, err := l.find()
	if err == nil && l.Identity != "" {
		p.IdentityPath, p.IdentityOrigin = l.Identity, cmp.Or(l.IdentityOrigin, "--identity")
	}
	return p, err
}

// placeAt is a cell that a file names.
func placeAt(path string, f *CellFile, origin string) *Place {
	p := &Place{CellFile: *f, IdentityPath: f.Identity, Origin: origin}
	if p.IdentityPath != "" && !filepath.IsAbs(p.IdentityPath) {
		p.IdentityPath = filepath.Join(filepath.Dir(path), p.IdentityPath)
	}
	return p
}

func (l Lookup) find() (*Place, error) {
	if l.UserConfig == "" {
		l.UserConfig = UserConfigPath()
	}
	if l.Flag != "" {
		return l.named(l.Flag, "--cell")
	}
	if l.Env != "" {
		return l.named(l.Env, "$"+cmp.Or(l.EnvName, "BORG_CELL"))
	}
	local := filepath.Join(l.Dir, ".borg", "cell.yaml")
	f, err := ReadCellFile(local)
	if err == nil {
		return placeAt(local, f, local), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	user, err := ReadUserConfig(l.UserConfig)
	if err != nil {
		return nil, err
	}
	if user.Cell != "" {
		return l.named(user.Cell, l.UserConfig)
	}
	return nil, &NoCellError{Looked: []string{
		"--cell: not given",
		"$BORG_CELL: not set",
		local + ": no such file",
		l.UserConfig + ": names no cell",
	}}
}

// named resolves a path, addresses, or a name in the user's config.
func (l Lookup) named(value, origin string) (*Place, error) {
	if strings.ContainsAny(value, "/\\") && !strings.Contains(value, "unix:") || strings.HasSuffix(value, ".yaml") {
		f, err := ReadCellFile(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", origin, err)
		}
		return placeAt(value, f, origin+" ("+value+")"), nil
	}
	if strings.Contains(value, ":") {
		masters := strings.Split(value, ",")
		for _, m := range masters {
			if err := checkAddr(m); err != nil {
				return nil, fmt.Errorf("%s: %w", origin, err)
			}
		}
		return &Place{CellFile: CellFile{Masters: masters}, Origin: origin}, nil
	}
	user, err := ReadUserConfig(l.UserConfig)
	if err != nil {
		return nil, err
	}
	f, ok := user.Cells[value]
	if !ok {
		return nil, &UnknownCellError{Name: value, Origin: origin, UserConfig: l.UserConfig, Known: names(user.Cells)}
	}
	if f.Cell == "" {
		f.Cell = value
	}
	return placeAt(l.UserConfig, &f, fmt.Sprintf("%s (%s in %s)", origin, value, l.UserConfig)), nil
}

// UnknownCellError is a name that the user's config does not hold.
type UnknownCellError struct {
	Name, Origin, UserConfig string
	Known                    []string
}

func (e *UnknownCellError) Error() string {
	known := "it names no cells"
	if len(e.Known) > 0 {
		known = "it names " + strings.Join(e.Known, ", ")
	}
	return fmt.Sprintf("%s: there is no cell %q in %s; %s", e.Origin, e.Name, e.UserConfig, known)
}

func names(cells map[string]CellFile) []string {
	out := make([]string, 0, len(cells))
	for n := range cells {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}

package client

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestFindOrder(t *testing.T) {
	dir := t.TempDir()
	local := filepath.Join(dir, ".borg", "cell.yaml")
	user := filepath.Join(dir, "config.yaml")
	find := func(flag, env string) (string, error) {
		p, err := Lookup{Flag: flag, Env: env, Dir: dir, UserConfig: user}.Find()
		if err != nil {
			return "", err
		}
		return strings.Join(p.Masters, ","), nil
	}
	var none *NoCellError
	if _, err := find("", ""); !errors.As(err, &none) || len(none.Looked) != 4 {
		t.Fatalf("with nothing there: %v", err)
	}
	write(t, user, "cell: east\ncells:\n  east: {masters: ['e:1']}\n  west: {masters: ['w:1', 'w:2']}\n")
	check := func(flag, env, want string) {
		t.Helper()
		if got, err := find(flag, env); err != nil || got != want {
			t.Errorf("Find(--cell %q, $BORG_CELL %q) = %q, %v; want %q", flag, env, got, err, want)
		}
	}
	check("", "", "e:1")
	if err := WriteCellFile(local, &CellFile{Cell: "here", CellID: "x", Masters: []string{"l:1"}}); err != nil {
		t.Fatal(err)
	}
	check("", "", "l:1")
	check("", "west", "w:1,w:2")
	check("a:1,b:2", "west", "a:1,b:2")
	check(local, "west", "l:1")
	var unknown *UnknownCellError
	if _, err := find("north", ""); !errors.As(err, &unknown) || !reflect.DeepEqual(unknown.Known, []string{"east", "west"}) {
		t.Errorf("unknown name: %v", err)
	}
}

func TestCellFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "cell.yaml")
	want := &CellFile{Cell: "c", CellID: "id", Masters: []string{"127.0.0.1:7001", "unix:/run/x"}}
	if err := WriteCellFile(path, want); err != nil {
		t.Fatal(err)
	}
	got, err := ReadCellFile(path)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("read back %v, %v; want %v", got, err, want)
	}
	for text, want := range map[string]string{
		"cell: x\n":                   "names no masters",
		"masters: [nowhere]\n":        "not an address",
		"mastres: ['a:1']\n":          "mastres",
		"masters: 'a:1'\n":            "cannot unmarshal",
		"cell: [\n":                   "yaml",
		"masters: ['a:1', 'b:', c]\n": `"b:" is not an address`,
	} {
		write(t, path, text)
		if _, err := ReadCellFile(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: error %v, want one with the path and %q", text, err, want)
		}
	}
	if err := WriteCellFile(path, &CellFile{Cell: "x"}); err == nil {
		t.Error("a cell file without masters was written")
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

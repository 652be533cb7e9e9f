package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// forms2019 are the forms by the ends of names; .gz and .zst may follow.
var forms2019 = map[string]form{".json": formJSON, ".jsonl": formJSON, ".ndjson": formJSON, ".csv": formCSV, ".parquet": formParquet}

// formOf is the form of a file by its name; empty: it is none of ours.
func formOf(name string) form {
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".gz"), ".zst")
	return forms2019[filepath.Ext(name)]
}

// LoadGoogle2019 reads a folder of the tables of clusterdata-2019, each a file, some
// files (TABLE-000000000000.json.gz and so on) or a folder of files, and returns the
// cell at timeUs, or at a moment of its own choice (Unsaid). Bad rows are left out and
// noted, unless there are many.
// With an untilUs above timeUs the cell has what arrives until then, too, and tasks
// tell what became of them. What export wrote is read as well, with the names and the
// amounts that it says numbers and shares stand for.
func LoadGoogle2019(dir string, timeUs, untilUs int64) (*Cell, error) {
	found, err := find2019(dir)
	if err != nil {
		return nil, err
	}
	firstUs, err := found.firstMachine()
	if err != nil {
		return nil, err
	}
	_, err = os.Stat(filepath.Join(dir, aboutName))
	at := chosen(timeUs, untilUs, firstUs, err == nil)
	o := NewGoogle2019(at.us, untilUs)
	if err := o.readAbout(dir); err != nil {
		return nil, err
	}
	for range found.strange {
		o.note("files and folders left out, as they are none of the tables that are read")
	}
	for _, t := range tables2019 {
		for _, file := range found.files[t.name] {
			if err := o.readTable(t, file, t.read); err != nil {
				return nil, err
			}
		}
	}
	o.play()
	if o.unknown() {
		t := tables2019[len(tables2019)-1]
		for _, file := range found.files[t.name] {
			if err := o.readTable(t, file, (*Google2019).readLater); err != nil {
				return nil, err
			}
		}
		o.learn()
	}
	c, err := o.Cell()
	if err == nil {
		c.Moment = at.words(o.lastUs)
	}
	return c, err
}

func (o *Google2019) readTable(t table2019, file string, read func(*Google2019, *rows) error) error {
	if f := formOf(file); f == formParquet {
		in, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("open a file of a trace: %w", err)
		}
		defer in.Close()
		o.replay.kept.from(in)
		return read(o, records(file, f, in, t.must, t.columns))
	}
	return readFile(file, func(file string, in io.Reader) error {
		o.replay.kept.from(in)
		return read(o, records(file, formOf(file), in, t.must, t.columns))
	})
}

// readAbout reads about.json of an export.
func (o *Google2019) readAbout(dir string) error {
	file := filepath.Join(dir, aboutName)
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what an export says of itself: %w", err)
	}
	var about Largest
	if err := json.Unmarshal(data, &about); err != nil {
		return &Error{File: file, Line: 1, Text: fmt.Sprintf("it is no JSON: %v", err)}
	}
	const most = 1 << 50
	if about.CPUMilli < 0 || about.MemBytes < 0 || about.CPUMilli > most || about.MemBytes > most {
		return &Error{File: file, Line: 1, Text: fmt.Sprintf("a largest machine of %d thousandths of a core and %d bytes cannot be", about.CPUMilli, about.MemBytes)}
	}
	if about.CPUMilli > 0 && about.MemBytes > 0 {
		o.setLargest(about)
	}
	return nil
}

const aboutName = "about.json"

// found2019 are the files of a folder.
type found2019 struct {
	files map[string][]string
	// strange are others.
	strange []string
}

// find2019 looks for the tables.
func find2019(dir string) (*found2019, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("look for the tables of a trace: %w", err)
	}
	f := &found2019{files: make(map[string][]string)}
	for _, e := range entries {
		name := e.Name()
		t, ok := tableOf(name)
		path := filepath.Join(dir, name)
		switch {
		case name == aboutName:
		case !ok, !e.IsDir() && formOf(name) == "":
			f.strange = append(f.strange, path)
		case !e.IsDir():
			f.files[t.name] = append(f.files[t.name], path)
		default:
			within, err := os.ReadDir(path)
			if err != nil {
				return nil, fmt.Errorf("read the files of a table: %w", err)
			}
			for _, e := range within {
				if path := filepath.Join(path, e.Name()); formOf(e.Name()) == "" {
					f.strange = append(f.strange, path)
				} else {
					f.files[t.name] = append(f.files[t.name], path)
				}
			}
		}
	}
	for _, t := range tables2019 {
		if t.needed && len(f.files[t.name]) == 0 {
			return nil, fmt.Errorf("%s has no table %s: looked for %s.json, .jsonl, .ndjson or .csv (perhaps with .gz or .zst after it), %s.parquet, "+
				"files %s-* that end so, and a folder %s of such files", dir, t.name, t.name, t.name, t.name, t.name)
		}
	}
	return f, nil
}

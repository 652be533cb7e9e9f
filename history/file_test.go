package history

import (
	"strings"
	"testing"
)

// TestFiles: histories of one file by hand, and whether one cell can have given
// these answers.
func TestFiles(t *testing.T) {
	write := func(call, ret int64, content string, version uint64) FileRecord {
		return FileRecord{Key: "a/f", Kind: WriteFile, CallNs: call, ReturnNs: ret, Content: hashOf([]byte(content)), Answer: OK, Version: version}
	}
	read := func(call, ret int64, content string, version uint64) FileRecord {
		return ShowedFile(1, "a/f", call, ret, version, []byte(content))
	}
	remove := func(call, ret int64, version uint64) FileRecord {
		return FileRecord{Key: "a/f", Kind: DeleteFile, CallNs: call, ReturnNs: ret, Answer: OK, Version: version}
	}
	when := func(r FileRecord, version uint64) FileRecord { r.HasIf, r.IfVersion = true, version; return r }
	answered := func(r FileRecord, a Answer) FileRecord { r.Answer, r.Version = a, 0; return r }
	for name, tt := range map[string]struct {
		records []FileRecord
		ok      bool
	}{
		"read as written":                  {[]FileRecord{write(1, 2, "x", 5), read(3, 4, "x", 5)}, true},
		"another content":                  {[]FileRecord{write(1, 2, "x", 5), read(3, 4, "y", 5)}, false},
		"another version":                  {[]FileRecord{write(1, 2, "x", 5), read(3, 4, "x", 6)}, false},
		"an old read":                      {[]FileRecord{write(1, 2, "x", 5), write(3, 4, "y", 6), read(5, 6, "x", 5)}, false},
		"a read while it is written":       {[]FileRecord{write(1, 2, "x", 5), write(3, 9, "y", 6), read(5, 6, "x", 5), read(7, 8, "y", 6)}, true},
		"back again":                       {[]FileRecord{write(1, 2, "x", 5), write(3, 9, "y", 6), read(5, 6, "y", 6), read(7, 8, "x", 5)}, false},
		"versions go back":                 {[]FileRecord{write(1, 2, "x", 5), write(3, 4, "y", 4)}, false},
		"versions go back over a deletion": {[]FileRecord{write(1, 2, "x", 5), remove(3, 4, 6), write(5, 6, "y", 6)}, false},
		"compare and set":                  {[]FileRecord{when(write(1, 2, "x", 5), 0), when(write(3, 4, "y", 6), 5)}, true},
		"two first ones":                   {[]FileRecord{when(write(1, 2, "x", 5), 0), when(write(1, 2, "y", 6), 0)}, false},
		"one of two is first":              {[]FileRecord{when(write(1, 2, "x", 5), 0), answered(when(write(1, 2, "y", 0), 0), Conflict)}, true},
		"a conflict with nobody":           {[]FileRecord{answered(when(write(1, 2, "y", 0), 0), Conflict)}, false},
		"set over another version":         {[]FileRecord{write(1, 2, "x", 5), write(3, 4, "y", 6), when(write(5, 6, "z", 7), 5)}, false},
		"gone":                             {[]FileRecord{write(1, 2, "x", 5), remove(3, 4, 6), read(5, 6, "", 0)}, true},
		"not gone":                         {[]FileRecord{write(1, 2, "x", 5), read(5, 6, "", 0)}, false},
		"nobody knows, and it is there":    {[]FileRecord{answered(write(1, 0, "x", 0), Unknown), read(5, 6, "x", 5), read(7, 8, "x", 5)}, true},
		"nobody knows, and it is not":      {[]FileRecord{answered(write(1, 0, "x", 0), Unknown), read(5, 6, "", 0)}, true},
		"nobody knows, and then it goes":   {[]FileRecord{answered(write(1, 0, "x", 0), Unknown), read(5, 6, "x", 5), read(7, 8, "", 0)}, false},
	} {
		v := CheckFiles(tt.records, 0)
		if ok := v.Illegal == 0; ok != tt.ok || !ok && !strings.Contains(v.Detail, "a/f") {
			t.Errorf("%s: %+v, want that it is possible: %v", name, v, tt.ok)
		}
	}
}

package borgpb_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEveryFieldIsCommented wants words above every message, enum, service,
// rpc, field and enum value of the .proto files: they are the one description
// of the wire and of the log.
func TestEveryFieldIsCommented(t *testing.T) {
	files, err := filepath.Glob("../borg*/*.proto")
	if err != nil || len(files) < 13 {
		t.Fatalf("found the .proto files %v (%v), want those of borgpb and borgrpc", files, err)
	}
	total := 0
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n, bare := uncommented(string(text))
		total += n
		for _, name := range bare {
			t.Errorf("%s: %s has no comment: say what it is, its unit, its bounds and what zero means", path, name)
		}
	}
	if total < 500 {
		t.Errorf("only %d declarations were found in %v", total, files)
	}
}

// TestUncommented shows that the parser sees what lacks a comment.
func TestUncommented(t *testing.T) {
	const text = `syntax = "proto3";
option go_package = "x"; // not a declaration

// M is a message.
message M {
  // a is.
  int64 a = 1;
  map<string, bytes> b = 2; // a comment behind is not above

  repeated borg.Task c = 3;
  // One of them.
  oneof kind {
    string d = 4;
  }
}
message Empty {}

// E is.
enum E {
  E_UNSPECIFIED = 0;
  // One.
  E_ONE = 1;
}

// S is.
service S {
  rpc Do(stream M) returns (Empty);
  // Ask asks.
  rpc Ask(M) returns (stream M);
}
`
	n, bare := uncommented(text)
	if got, want := strings.Join(bare, " "), "M.b M.c M.d Empty E.E_UNSPECIFIED S.Do"; got != want || n != 13 {
		t.Errorf("found %d declarations, without a comment %q; want 13 and %q", n, got, want)
	}
}

var (
	opens    = regexp.MustCompile(`^(message|enum|service|oneof) (\w+) \{(\})?$`)
	method   = regexp.MustCompile(`^rpc (\w+)\(`)
	declares = regexp.MustCompile(`^(?:(?:repeated |optional )?(?:map<[^>]*>|[\w.]+) )?(\w+) = \d+;`)
)

// uncommented counts the declarations of a .proto file as this project writes
// them, one to a line, and names those without a comment on the line above.
func uncommented(text string) (n int, bare []string) {
	var around []string
	above := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		name := ""
		if m := opens.FindStringSubmatch(line); m != nil {
			name = m[2]
			if m[3] == "" {
				around = append(around, name)
				// What is in a oneof belongs to the message around it.
				if m[1] == "oneof" {
					around[len(around)-1] = around[len(around)-2]
				}
			}
		} else if line == "}" {
			around = around[:len(around)-1]
		} else if m := method.FindStringSubmatch(line); m != nil {
			name = around[len(around)-1] + "." + m[1]
		} else if m := declares.FindStringSubmatch(line); m != nil && len(around) > 0 {
			name = around[len(around)-1] + "." + m[1]
		}
		if name != "" {
			n++
			if !strings.HasPrefix(above, "// ") {
				bare = append(bare, name)
			}
		}
		above = line
	}
	return n, bare
}

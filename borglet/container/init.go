//go:build linux && cgo

package container

import "C"

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // enters namespaces before the Go runtime starts
)

// initVariable makes this program the first process of a container; see
// init.c.
const initVariable = "_BORG_INIT"

// init is the one that libcontainer needs: it starts this program again inside
// the new namespaces, with the argument "init", to finish the container from
// there.
func init() {
	if len(os.Args) > 1 && os.Args[1] == "init" && os.Getenv("_LIBCONTAINER_INITPIPE") != "" {
		libcontainer.Init()
	}
}

// Where this program and what it is linked with appear in a container. A root
// file system from elsewhere has other libraries, or none.
const (
	initDir     = "/.borg"
	initProgram = initDir + "/init"
	initLoader  = initDir + "/loader"
	initLibs    = initDir + "/lib"
)

// initFile is one file made visible in the container for the init.
type initFile struct{ source, path string }

// initFiles returns the files that the init needs and the command line that
// starts it, to be followed by the task's own.
func initFiles() (files []initFile, args []string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("find the shim's own program: %w", err)
	}
	files = []initFile{{self, initProgram}}
	bin, err := elf.Open(self)
	if err != nil {
		return nil, nil, fmt.Errorf("read the shim's own program: %w", err)
	}
	defer bin.Close()
	loader := ""
	for _, p := range bin.Progs {
		if p.Type == elf.PT_INTERP {
			name := make([]byte, p.Filesz)
			if _, err := p.ReadAt(name, 0); err != nil {
				return nil, nil, fmt.Errorf("read the shim's own program: %w", err)
			}
			loader = strings.TrimRight(string(name), "\x00")
		}
	}
	if loader == "" {
		return files, []string{initProgram, "--"}, nil
	}
	if loader, err = filepath.EvalSymlinks(loader); err != nil {
		return nil, nil, fmt.Errorf("find the loader of the shim's own program: %w", err)
	}
	libs, err := loadedLibraries()
	if err != nil {
		return nil, nil, err
	}
	files = append(files, initFile{loader, initLoader})
	for _, lib := range libs {
		if lib.source != loader {
			files = append(files, lib)
		}
	}
	return files, []string{initLoader, "--library-path", initLibs, initProgram, "--"}, nil
}

// loadedLibraries lists the shared libraries of this very process, under the
// names that the loader looks for.
func loadedLibraries() ([]initFile, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, fmt.Errorf("list loaded libraries: %w", err)
	}
	var libs []initFile
	for line := range strings.Lines(string(maps)) {
		at := strings.IndexByte(line, '/')
		if at < 0 || !strings.Contains(line[at:], ".so") {
			continue
		}
		source := strings.TrimRight(line[at:], "\n")
		if slices.ContainsFunc(libs, func(l initFile) bool { return l.source == source }) {
			continue
		}
		lib, err := elf.Open(source)
		var format *elf.FormatError
		if errors.As(err, &format) {
			continue // mapped, but no library
		}
		if err != nil {
			return nil, fmt.Errorf("read library %s: %w", source, err)
		}
		names, err := lib.DynString(elf.DT_SONAME)
		lib.Close()
		if err != nil || len(names) == 0 {
			names = []string{filepath.Base(source)}
		}
		libs = append(libs, initFile{source, filepath.Join(initLibs, names[0])})
	}
	return libs, nil
}

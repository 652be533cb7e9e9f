package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

// limitTCP bounds the buffers of a group's TCP connections by its memory. Version 1 of cgroups
// counts them apart from memory, without a limit unless one is set before the first connection;
// version 2 counts them as memory. What is in use stays when the limit goes below it.
func limitTCP(group paths, l borglet.Limits) error {
	dir, apart := group["memory"]
	if !apart {
		return nil
	}
	limit := int64(-1)
	if l.MemBytes > 0 {
		limit = max(l.MemBytes, minMemBytes)
	}
	err := os.WriteFile(filepath.Join(dir, "memory.kmem.tcp.limit_in_bytes"), []byte(strconv.FormatInt(limit, 10)), 0o644)
	if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("limit the buffers of TCP connections: %w", err)
	}
	return nil
}

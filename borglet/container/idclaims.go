package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

// idsPerBlock is how many user ids a borglet claims at once: those of 16 copies.
const idsPerBlock = 16 * idsPerCopy

// idClaimsDir holds the claims of all borglets of the machine, of whichever cell. The ids
// belong to the machine, so the place does not depend on a borglet's own directories.
const idClaimsDir = "/run/borg/task-ids"

// idClaims keeps borglets of one machine from giving their tasks the same user ids. The
// packet filter tells tasks apart by user id, so that two borglets with the same ids would
// close each other's granted ports. A claim is a file that names its owner. It stays when
// the borglet is killed, because its tasks go on.
type idClaims struct {
	dir   string
	owner idClaim
}

// idClaim is the content of a claim's file.
type idClaim struct {
	// StateDir is the owner's directory of containers: one borglet has it at a time.
	StateDir string `json:"state_dir"`
	// Borglet is the process that claimed the block last.
	Borglet proc `json:"borglet"`
}

func newIDClaims(dir, state string) (*idClaims, error) {
	self, err := identify(os.Getpid())
	if err == nil {
		err = os.MkdirAll(dir, 0o711)
	}
	if err != nil {
		return nil, fmt.Errorf("claim user ids for tasks: %w", err)
	}
	return &idClaims{dir: dir, owner: idClaim{StateDir: state, Borglet: self}}, nil
}

func (c *idClaims) file(block uint32) string {
	return filepath.Join(c.dir, strconv.FormatUint(uint64(block), 10))
}

// claim takes a block of ids, unless another borglet has it that lives or whose tasks do.
func (c *idClaims) claim(block uint32) (ok bool, err error) {
	unlock, err := c.lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	was, err := c.read(block)
	if err != nil {
		return false, err
	}
	if was != nil && was.StateDir != c.owner.StateDir && was.inUse() {
		return false, nil
	}
	text, err := json.Marshal(c.owner)
	if err == nil {
		err = borglet.WriteSynced(c.file(block), text)
	}
	if err != nil {
		return false, fmt.Errorf("claim user ids for tasks: %w", err)
	}
	return true, nil
}

// own lists the blocks that an earlier borglet with the same directories claimed.
func (c *idClaims) own() ([]uint32, error) {
	unlock, err := c.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, fmt.Errorf("list claimed user ids: %w", err)
	}
	var blocks []uint32
	for _, e := range entries {
		block, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil {
			continue
		}
		was, err := c.read(uint32(block))
		if err != nil {
			return nil, err
		}
		if was != nil && was.StateDir == c.owner.StateDir {
			blocks = append(blocks, uint32(block))
		}
	}
	slices.Sort(blocks)
	return blocks, nil
}

// release gives all blocks of the owner back.
func (c *idClaims) release() error {
	blocks, err := c.own()
	for _, block := range blocks {
		err = errors.Join(err, removeFile(c.file(block)))
	}
	return err
}

// read returns a claim; nil when there is none, or only half of one.
func (c *idClaims) read(block uint32) (*idClaim, error) {
	text, err := os.ReadFile(c.file(block))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read claimed user ids: %w", err)
	}
	var was idClaim
	if json.Unmarshal(text, &was) != nil {
		return nil, nil
	}
	return &was, nil
}

// lock keeps other borglets out of the claims.
func (c *idClaims) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("claim user ids for tasks: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("claim user ids for tasks: %w", err)
	}
	return func() { f.Close() }, nil
}

// inUse reports whether the borglet of a claim lives, or has left containers.
func (c *idClaim) inUse() bool {
	if c.Borglet.alive() {
		return true
	}
	entries, err := os.ReadDir(c.StateDir)
	return len(entries) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// releaseIDs gives back what a borglet claimed that is swept.
func releaseIDs(dir, state string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	c := &idClaims{dir: dir, owner: idClaim{StateDir: state}}
	return c.release()
}

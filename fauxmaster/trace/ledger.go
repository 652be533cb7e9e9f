package trace

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
)

const (
	// freeKeptBytes and keptRatio bound the memory for what is kept of the files of an
	// import: so many bytes, and so many times what the files take as they come.
	freeKeptBytes = int64(128 << 20)
	keptRatio     = int64(64)
	// keptTextBytes is what a text is charged beside its bytes, keptItemBytes what a row is.
	keptTextBytes = 64
	keptItemBytes = 256
)

// ledger counts the memory for what an import keeps. The zero value has the bound of the
// constants.
type ledger struct {
	// free is the part of the bound that no file adds; zero: freeKeptBytes.
	free        int64
	kept, files int64
	// texts are those that are kept, each once: a text of a row keeps all of its row.
	texts map[string]string
}

// from adds what a file takes as it comes.
func (l *ledger) from(in io.Reader) {
	switch f := in.(type) {
	case *File:
		l.files += f.packed
	case *os.File:
		if info, err := f.Stat(); err == nil {
			l.files += info.Size()
		}
	}
}

func (l *ledger) most() int64 {
	free := l.free
	if free == 0 {
		free = freeKeptBytes
	}
	return free + min(l.files, 1<<50)*keptRatio
}

// add charges bytes. Who adds much looks for room before.
func (l *ledger) add(bytes int64) { l.kept += bytes }

// item charges a value of a foreign object, with all that it refers to. Lists of them
// have room for as many again.
func (l *ledger) item(v any) error {
	of := reflect.ValueOf(v).Elem()
	l.add(2*int64(of.Type().Size()) + referred(of))
	return l.room(0)
}

// room returns an error if what is kept, with so many bytes more, is above the bound.
func (l *ledger) room(bytes int64) error {
	if most := l.most(); l.kept+bytes > most {
		return fmt.Errorf("what is kept of it needs more than %d bytes of memory (%d MiB, and %d times what the files take); import it in parts",
			most, (most-l.files*keptRatio)>>20, keptRatio)
	}
	return nil
}

// text is a copy of a text that may be kept.
func (l *ledger) text(of string) string {
	if of == "" {
		return ""
	}
	if have, ok := l.texts[of]; ok {
		return have
	}
	if l.texts == nil {
		l.texts = make(map[string]string)
	}
	own := strings.Clone(of)
	l.texts[own] = own
	l.add(keptTextBytes + int64(len(own)))
	return own
}

// keep charges what is kept of a row, and fails it, for good, when that is too much.
func (r *rows) keep(l *ledger, bytes int64) {
	if r.err != nil {
		return
	}
	if err := l.room(bytes); err != nil {
		r.lost = true
		r.failLine("%v", err)
		return
	}
	l.add(bytes)
}

// referred is the memory that a value refers to.
func referred(v reflect.Value) (bytes int64) {
	switch v.Kind() {
	case reflect.String:
		return int64(v.Len())
	case reflect.Pointer:
		if !v.IsNil() {
			return int64(v.Type().Elem().Size()) + referred(v.Elem())
		}
	case reflect.Slice:
		bytes = int64(v.Cap()) * int64(v.Type().Elem().Size())
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return bytes
		}
		for i := range v.Len() {
			bytes += referred(v.Index(i))
		}
	case reflect.Map:
		if v.IsNil() {
			return 0
		}
		// A map has room for twice as many.
		of := v.Type()
		bytes = keptTextBytes + int64(v.Len())*2*int64(of.Key().Size()+of.Elem().Size())
		for each := v.MapRange(); each.Next(); {
			bytes += referred(each.Key()) + referred(each.Value())
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			bytes += referred(field)
		}
	}
	return bytes
}

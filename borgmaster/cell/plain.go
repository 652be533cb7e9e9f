package cell

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// A record can be written as a line of JSON, {"key": ..., "value": ...}, and read
// again: for people who repair a cell by hand. Each kind of record is described once,
// by a function that walks over its fields in order; a form takes it in one direction
// or the other. Nothing is judged here: whether the records make a cell is for
// Load to say.

// PlainRecord writes a record as one line of JSON, without a line break. It fails on
// a record that this build does not read completely.
func PlainRecord(key, value []byte) ([]byte, error) {
	if len(key) == 0 || len(value) == 0 || value[0] != recordLayout {
		return nil, errors.New("a record without a kind or of a layout that this build does not know")
	}
	name, ok := kindNames[key[0]]
	if !ok {
		return nil, fmt.Errorf("a record of kind %#02x, which this build does not know", key[0])
	}
	k := &form{from: &decoder{}, key: &keyReader{b: key[1:]}, out: &object{}}
	k.out.put("kind", name)
	keyForm(key[0], k)
	v := &form{from: &decoder{b: value[1:]}, out: &object{}}
	valueForms[key[0]](v)
	if err := errors.Join(k.err, v.err, v.from.done(), k.key.done()); err != nil {
		return nil, fmt.Errorf("a %s: %w", name, err)
	}
	line := &object{}
	line.put("key", k.out)
	line.put("value", v.out)
	return json.Marshal(line)
}

// ReadPlainRecord reads what PlainRecord writes.
func ReadPlainRecord(line []byte) (key, value []byte, err error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	var in struct{ Key, Value map[string]any }
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, nil, fmt.Errorf("not a record: %w", err)
	}
	if d.More() {
		return nil, nil, errors.New("there is something after the record")
	}
	name, _ := in.Key["kind"].(string)
	kind := byte(0)
	for b, n := range kindNames {
		if n == name {
			kind = b
		}
	}
	if kind == 0 {
		return nil, nil, fmt.Errorf("there is no kind of record %q", name)
	}
	delete(in.Key, "kind")
	k := &form{to: &encoder{}, in: in.Key, bigEndian: true}
	keyForm(kind, k)
	v := &form{to: &encoder{b: []byte{recordLayout}}, in: in.Value}
	valueForms[kind](v)
	if err := errors.Join(k.end("key"), v.end("value")); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return append([]byte{kind}, k.to.b...), v.to.b, nil
}

var kindNames = map[byte]string{
	kindHead: "head", kindMachine: "machine", kindAllocSet: "alloc_set", kindAlloc: "alloc", kindJob: "job", kindSpec: "spec",
	kindTask: "task", kindCopy: "copy", kindUpdate: "update", kindRequest: "request", kindRequestMark: "request_mark", kindUser: "user", kindToken: "token",
	kindSecret: "secret", kindCellKey: "cell_key", kindFileChanges: "file_changes", kindFile: "file", kindRestored: "restored", kindOutage: "outage", kindEnding: "ending", kindBan: "ban",
	kindLabelPolicy: "label_policy", kindVisibility: "visibility",
	kindQuota: "quota", kindTaskBounds: "task_bounds", kindQuotaPolicy: "quota_policy", kindStateBudget: "state_budget",
	kindSeat: "seat", kindCron: "cron",
	kindPreemption: "preemption_policy",
	kindVolume:     "volume",
}

func keyForm(kind byte, f *form) {
	switch kind {
	case kindMachine, kindUser, kindSecret, kindFile, kindTaskBounds, kindStateBudget, kindRequestMark:
		f.rest("name", "")
	case kindToken:
		f.rest("hash", "hex")
	case kindQuota:
		f.rest("of", "parts")
	case kindBan:
		f.rest("package", "parts")
	case kindVolume:
		f.rest("volume", "parts")
	case kindAllocSet, kindJob, kindUpdate, kindCron:
		f.uid("uid")
	case kindAlloc, kindTask, kindSeat:
		f.uid("uid")
		f.keyUint("index", 4)
	case kindCopy:
		f.uid("uid")
		f.keyUint("index", 4)
		f.keyUint("attempt", 8)
	case kindSpec:
		f.uid("uid")
		f.keyUint("version", 8)
	case kindRequest:
		f.keyUint("seq", 8)
	case kindEnding:
		f.keyUint("death", 8)
	}
}

var valueForms = map[byte]func(*form){
	kindHead: func(f *form) {
		f.str("cell_id")
		f.uints("epoch", "index", "term", "format")
		f.ints("cell_time_ns", "wall_time_ns")
		f.bools("wall_suspect", "wall_stamped")
		f.uints("stamp_term", "deaths", "requests")
	},
	kindMachine: machineForm,
	kindAllocSet: func(f *form) {
		f.str("user")
		f.str("name")
		f.strs("labels")
		f.strs("annotations")
		f.message("spec", &borgpb.AllocSetSpec{})
		f.ints("submitted_wall_ns", "changed_wall_ns")
		f.str("reason")
		f.uints("death_seq")
		f.ints("death_ns")
		f.tagged(tagSetChanges, "changes", func(f *form) {
			f.uints("version", "allocs", "attempt_floor")
			f.ints("again_ns")
		})
		f.tagged(tagSetGiven, "given", func(f *form) {
			f.strs("labels")
			f.strs("annotations")
		})
	},
	kindAlloc: func(f *form) {
		st := f.byte("state")
		f.uints("attempt")
		if lost := f.bool("lost"); lost || state(st) == stateRunning {
			f.str("machine")
		}
		f.victims()
		f.ints("changed_wall_ns")
		f.str("reason")
		f.grants()
		f.tagged(tagBehind, "behind", func(f *form) {
			f.bools("moves")
			resourcesForm("holds", f)
		})
	},
	kindJob: func(f *form) {
		f.str("user")
		f.str("name")
		f.uints("version")
		f.strs("labels")
		f.strs("annotations")
		f.uints("tasks", "attempt_floor")
		f.ints("submitted_wall_ns", "changed_wall_ns")
		f.str("reason")
		f.uints("death_seq")
		f.ints("death_ns")
		f.tagged(tagEnabled, "enabled", func(*form) {})
		f.tagged(tagSlot, "slot", func(f *form) { f.ints("wall_ns") })
		f.tagged(tagGiven, "given", func(f *form) {
			f.strs("labels")
			f.strs("annotations")
		})
		f.tagged(tagSaving, "saving", func(f *form) {
			f.str("user")
			f.str("set")
			f.uints("index", "attempt")
			f.str("machine")
			f.ints("until_ns", "again_ns")
			f.bools("beside")
		})
	},
	kindSpec: func(f *form) {
		f.message("spec", &borgpb.JobSpec{})
		f.tagged(tagCores, "exclusive_cores", func(*form) {})
	},
	kindTask: func(f *form) {
		f.byte("state")
		f.byte("flags")
		f.uints("failures", "attempt")
		f.ints("changed_wall_ns")
		f.str("reason")
		f.optional("copy", copyForm)
		f.tagged(tagDisrupted, "disrupted", func(f *form) {
			f.list("times", func(f *form) { f.ints("ns") })
		})
		f.tagged(tagCrashes, "crashes", func(f *form) {
			f.str("machine")
			f.uints("version", "copies", "crashes")
			f.ints("last_ns")
			f.bools("everywhere")
		})
		f.tagged(tagRetries, "retries", func(f *form) {
			f.uints("version", "failures")
			f.ints("ready_ns")
		})
	},
	kindCopy: func(f *form) {
		f.optional("orphan", func(f *form) {
			f.str("user")
			f.str("name")
		})
		copyForm(f)
	},
	kindUpdate: func(f *form) {
		f.uid("uid")
		f.uints("from_version", "to_version", "batch_size", "max_disruptions")
		f.byte("state")
		f.str("reason")
		f.uints("in_place", "restarted", "rescheduled", "skipped")
		f.ints("started_wall_ns", "ended_wall_ns")
		f.tagged(tagRollout, "rollout", func(f *form) {
			f.uints("order")
			f.ints("watch_ns")
			f.uints("fails_at")
			f.ints("deadline_ns")
			f.uints("canaries")
			f.ints("canary_watch_ns")
			f.bools("auto_rollback")
			f.ints("close_after_ns", "pulse_ns")
			f.bools("apart")
			f.uints("stable", "stable_tasks")
			f.bools("rollback", "promoted")
			f.uints("failures")
			f.ints("progress_ns", "canary_ns", "close_ns", "pulsed_ns")
		})
		f.tagged(tagPace, "pace", func(f *form) {
			f.str("spread_by")
			f.uints("surge", "extra")
			f.bools("gate_asked")
			f.ints("gate_fails_after_ns")
			f.bools("gate_open")
			f.byte("gate_verdict")
			f.ints("gate_failed_ns")
			f.str("gate_said")
		})
	},
	kindSeat: func(f *form) { f.str("machine") },
	kindVolume: func(f *form) {
		f.ints("disk_bytes", "keep_ns", "until_ns", "made_wall_ns")
		f.byte("flags")
		f.str("reason")
	},
	kindCron: func(f *form) {
		f.bools("suspended")
		f.ints("last_wall_ns", "since_wall_ns")
		f.uints("manual")
		f.list("runs", func(f *form) {
			f.ints("slot_wall_ns")
			f.bools("by_hand")
			f.uid("uid")
			f.str("name")
			f.byte("outcome")
			f.str("reason")
			f.ints("decided_wall_ns", "ended_wall_ns")
			f.uints("slots")
		})
	},
	kindRequest: func(f *form) {
		f.str("id")
		f.ints("made_wall_ns", "answered_wall_ns")
		f.uints("index")
		f.uid("uid")
		f.uid("update_uid")
		f.uints("version", "asked_sum")
		f.ifMore("asked", func(f *form) {
			f.str("user")
			if f.uint("refusal_kind") != 0 {
				f.str("object")
				f.str("message")
				f.str("field")
			}
		})
	},
	kindRequestMark: func(f *form) { f.ints("wall_ns") },
	kindUser: func(f *form) {
		f.list("capabilities", func(f *form) { f.str("name") })
		f.ints("revoked_wall_ns")
		f.tagged(tagProven, "proven", func(*form) {})
	},
	kindToken: func(f *form) {
		f.str("name")
		f.ints("expires_wall_ns")
	},
	kindSecret: func(f *form) {
		f.uints("version")
		f.str("key_id")
		f.bytes("sealed")
		f.ints("set_wall_ns")
	},
	kindCellKey:     func(f *form) { f.str("id") },
	kindFileChanges: func(f *form) { f.uints("changes") },
	kindFile: func(f *form) {
		f.uints("version")
		f.bytes("content")
		f.ints("written_wall_ns")
	},
	kindRestored: func(f *form) {
		f.uints("from_index")
		f.ints("from_wall_ns", "wall_ns")
		f.bools("held")
		f.ints("until_ns")
	},
	kindOutage: func(f *form) { f.ints("until_ns") },
	kindEnding: func(f *form) {
		f.str("user")
		f.str("job")
		f.bools("failed", "children_done")
		f.uid("after")
		f.ints("ready_ns")
	},
	kindLabelPolicy: func(f *form) {
		f.uints("version")
		f.list("rules", func(f *form) {
			f.list("kinds", func(f *form) { f.byte("kind") })
			f.str("key")
			f.bools("required", "forbidden")
			f.optional("default", func(f *form) { f.str("value") })
			f.list("values", func(f *form) { f.str("value") })
		})
	},
	kindVisibility: func(f *form) {
		f.uints("version")
		f.bools("private")
		f.list("groups", func(f *form) {
			f.str("name")
			f.list("users", func(f *form) { f.str("user") })
		})
	},
	kindQuota: func(f *form) {
		resourcesForm("limit", f)
		f.ints("expires_wall_ns")
		f.str("by")
		f.str("reason")
		f.ints("set_wall_ns")
	},
	kindTaskBounds: func(f *form) {
		resourcesForm("min", f)
		resourcesForm("default", f)
		resourcesForm("max", f)
	},
	kindStateBudget: func(f *form) {
		for _, m := range Measures {
			f.uints(strings.ReplaceAll(MeasureName(m), "-", "_"))
		}
	},
	kindQuotaPolicy: func(f *form) {
		f.bools("enforce")
		f.uints("oversell_free", "oversell_batch", "oversell_mid", "oversell_production", "oversell_monitoring")
	},
	kindPreemption: func(f *form) {
		f.byte("collapse")
	},
	kindBan: func(f *form) {
		f.str("by")
		f.str("reason")
		f.ints("since_wall_ns", "until_wall_ns")
	},
}

func machineForm(f *form) {
	f.uid("uid")
	f.uints("version")
	f.strs("labels")
	f.strs("annotations")
	f.str("addr")
	f.strs("attributes")
	resourcesForm("capacity", f)
	f.uints("port_first", "port_last")
	taints := f.list("taints", func(f *form) {
		f.str("key")
		f.str("value")
		f.bools("evict")
	})
	f.bools("down", "draining")
	f.str("reason")
	f.ints("changed_wall_ns")
	f.tagged(tagTaints, "taint_times", func(f *form) {
		f.listOf("taints", taints, func(f *form) {
			f.bools("prefer_not")
			f.ints("since_ns")
		})
	})
	f.tagged(tagHeard, "heard", func(f *form) {
		f.bools("unheard")
		f.uints("unknown")
	})
	f.tagged(tagDrain, "drain", func(f *form) {
		f.str("reason")
		f.str("user")
		f.ints("since_wall_ns", "deadline_ns")
		f.bools("forced")
		f.uints("evicted")
	})
	f.tagged(tagPackages, "packages", func(f *form) {
		f.uints("port")
		f.list("digests", func(f *form) { f.str("digest") })
	})
	f.tagged(tagGiveUp, "gives_up_volumes", func(*form) {})
	f.tagged(tagHeldPorts, "held_ports", func(f *form) {
		f.list("ports", func(f *form) {
			f.uints("port")
			f.ints("until_ns")
			f.str("by")
		})
	})
}

func resourcesForm(name string, f *form) {
	f.group(name, func(f *form) {
		f.ints("cpu_milli", "mem_bytes", "disk_bytes", "disk_bytes_per_s", "ports")
		f.list("devices", func(f *form) {
			f.str("name")
			// Whole ones by their number; a share as a negative number of thousandths.
			f.ints("count")
		})
	})
}

func copyForm(f *form) {
	f.str("machine")
	f.optional("alloc", func(f *form) {
		f.uid("uid")
		f.uints("index")
	})
	f.byte("state")
	f.bools("shim_lost")
	f.byte("kind")
	f.ints("priority")
	f.uints("version")
	if !f.bool("bound") {
		resourcesForm("resources", f)
	}
	f.list("ports", func(f *form) { f.uints("port") })
	f.uints("restarts")
	f.ints("pid", "started_wall_ns")
	f.optional("exit", func(f *form) {
		f.ints("code", "signal")
		f.bools("oom", "unknown")
		f.ints("ended_wall_ns")
		f.str("error")
	})
	f.str("text")
	f.optional("stop", func(f *form) {
		f.uints("cause")
		f.str("reason")
		f.uints("index")
		f.ints("grace_ns")
	})
	f.ints("ended_wall_ns")
	f.victims()
	f.grants()
	f.tagged(tagNote, "note", func(f *form) {
		f.str("text")
		f.strs("annotations")
	})
	f.tagged(tagReservation, "reservation", func(f *form) { f.ints("cpu_milli", "mem_bytes", "set_ns") })
	f.tagged(tagUpSince, "watched", func(f *form) { f.ints("since_ns", "well_ns") })
	f.tagged(tagQuarantine, "quarantine", func(f *form) {
		f.str("user")
		f.str("reason")
		f.ints("since_wall_ns", "until_ns", "grace_ns")
	})
	f.tagged(tagNotice, "notice", func(f *form) { f.ints("ns") })
	f.tagged(tagOwnStop, "for_own_work", func(*form) {})
	f.tagged(tagAddr, "network", func(f *form) { f.str("addr") })
	f.tagged(tagUses, "works_in", func(f *form) {
		f.str("user")
		f.str("name")
		f.uints("index")
		f.list("volumes", func(f *form) { f.str("name") })
	})
	f.tagged(tagExitReason, "ended_for", func(f *form) { f.str("reason") })
	f.tagged(tagExitWay, "ended_by", func(f *form) {
		f.uints("way")
		f.str("oom_process")
		f.ints("oom_bytes")
	})
	f.tagged(tagLeft, "left_by", func(f *form) {
		f.str("user")
		f.str("name")
		f.uints("index")
	})
}

func (f *form) victims() {
	f.list("victims", func(f *form) {
		f.uid("uid")
		f.uints("index", "attempt")
	})
}

func (f *form) grants() {
	f.tagged(tagDevices, "devices", func(f *form) {
		f.list("grants", func(f *form) {
			f.str("name")
			f.uints("number", "milli")
		})
	})
}

// object is JSON with its names in order.
type object struct {
	names  []string
	values []any
}

func (o *object) put(name string, v any) {
	o.names, o.values = append(o.names, name), append(o.values, v)
}

// MarshalJSON writes it.
func (o *object) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, name := range o.names {
		if i > 0 {
			b = append(b, ',')
		}
		v, err := json.Marshal(o.values[i])
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, '"'), name...), '"', ':')
		b = append(b, v...)
	}
	return append(b, '}'), nil
}

// form takes the fields of a record from bytes to JSON (from and out are set) or from
// JSON to bytes (to and in are). The first fault ends it.
type form struct {
	from *decoder
	key  *keyReader
	out  *object

	to *encoder
	in map[string]any
	// Numbers are those of a key.
	bigEndian bool

	err error
}

func (f *form) fail(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf(format, args...)
	}
}

// end wants all of the JSON used.
func (f *form) end(what string) error {
	for name := range f.in {
		f.fail("%s: there is no field %q here", what, name)
	}
	return f.err
}

// take takes a field out of the JSON.
func (f *form) take(name string) any {
	v, ok := f.in[name]
	if !ok {
		f.fail("field %q is missing", name)
	}
	delete(f.in, name)
	return v
}

func (f *form) number(name string) string {
	switch v := f.take(name).(type) {
	case json.Number:
		return v.String()
	default:
		f.fail("field %q is not a number", name)
		return "0"
	}
}

func (f *form) uint(name string) (n uint64) {
	if f.to == nil {
		n = f.from.uint()
		f.out.put(name, n)
		return n
	}
	if _, err := fmt.Sscan(f.number(name), &n); err != nil {
		f.fail("field %q: %v", name, err)
	}
	f.to.uint(n)
	return n
}

func (f *form) uints(names ...string) {
	for _, name := range names {
		f.uint(name)
	}
}

func (f *form) ints(names ...string) {
	for _, name := range names {
		if f.to == nil {
			f.out.put(name, f.from.int())
			continue
		}
		var n int64
		if _, err := fmt.Sscan(f.number(name), &n); err != nil {
			f.fail("field %q: %v", name, err)
		}
		f.to.int(n)
	}
}

func (f *form) byte(name string) byte {
	if f.to == nil {
		b := f.from.byte()
		f.out.put(name, b)
		return b
	}
	var n uint8
	if _, err := fmt.Sscan(f.number(name), &n); err != nil {
		f.fail("field %q: %v", name, err)
	}
	f.to.byte(n)
	return n
}

func (f *form) bool(name string) bool {
	if f.to == nil {
		v := f.from.bool()
		f.out.put(name, v)
		return v
	}
	v, ok := f.take(name).(bool)
	if !ok {
		f.fail("field %q is neither true nor false", name)
	}
	f.to.bool(v)
	return v
}

func (f *form) bools(names ...string) {
	for _, name := range names {
		f.bool(name)
	}
}

func (f *form) text(name string) string {
	v, ok := f.take(name).(string)
	if !ok {
		f.fail("field %q is not a text", name)
	}
	return v
}

func (f *form) str(name string) {
	if f.to == nil {
		f.out.put(name, f.from.str())
		return
	}
	f.to.str(f.text(name))
}

func (f *form) bytes(name string) {
	if f.to == nil {
		f.out.put(name, base64.StdEncoding.EncodeToString(f.from.raw()))
		return
	}
	b, err := base64.StdEncoding.DecodeString(f.text(name))
	if err != nil {
		f.fail("field %q: %v", name, err)
	}
	f.to.bytes(b)
}

func (f *form) strs(name string) {
	if f.to == nil {
		m := f.from.strs()
		if m == nil {
			m = map[string]string{}
		}
		f.out.put(name, m)
		return
	}
	v, ok := f.take(name).(map[string]any)
	if !ok {
		f.fail("field %q is not a map of texts", name)
	}
	m := make(map[string]string, len(v))
	for k, v := range v {
		if m[k], ok = v.(string); !ok {
			f.fail("field %q: %q is not a text", name, k)
		}
	}
	f.to.strs(m)
}

// message is a spec. It is shown as what it says when these are the bytes that it
// would be written as again, and as the bytes otherwise.
func (f *form) message(name string, m proto.Message) {
	marshal := proto.MarshalOptions{Deterministic: true}.Marshal
	if f.to == nil {
		data := f.from.raw()
		if proto.Unmarshal(data, m) == nil {
			if again, err := marshal(m); err == nil && bytes.Equal(again, data) {
				if text, err := protojson.Marshal(m); err == nil {
					f.out.put(name, json.RawMessage(text))
					return
				}
			}
		}
		f.out.put(name+"_bytes", base64.StdEncoding.EncodeToString(data))
		return
	}
	if _, raw := f.in[name+"_bytes"]; raw {
		f.bytes(name + "_bytes")
		return
	}
	text, err := json.Marshal(f.take(name))
	if err == nil {
		err = protojson.Unmarshal(text, m)
	}
	var data []byte
	if err == nil {
		data, err = marshal(m)
	}
	if err != nil {
		f.fail("field %q: %v", name, err)
	}
	f.to.bytes(data)
}

func (f *form) uid(name string) {
	switch {
	case f.to == nil && f.key != nil:
		f.out.put(name, f.key.uid().String())
	case f.to == nil:
		f.out.put(name, f.from.uid().String())
	default:
		u, err := ParseUID(f.text(name))
		if err != nil {
			f.fail("field %q: %v", name, err)
		}
		if f.bigEndian {
			f.to.b = appendUIDKey(f.to.b, 0, u)
			// The kind in front of it is the record's.
			f.to.b = append(f.to.b[:len(f.to.b)-21], f.to.b[len(f.to.b)-20:]...)
			return
		}
		f.to.uid(u)
	}
}

// keyUint is a number of a key.
func (f *form) keyUint(name string, width int) {
	if f.to == nil {
		n := uint64(0)
		if width == 4 {
			n = uint64(f.key.uint32())
		} else {
			n = f.key.uint64()
		}
		f.out.put(name, n)
		return
	}
	var n uint64
	if _, err := fmt.Sscan(f.number(name), &n); err != nil || width == 4 && n > 1<<32-1 {
		f.fail("field %q is out of its range", name)
	}
	for i := width - 1; i >= 0; i-- {
		f.to.b = append(f.to.b, byte(n>>(8*i)))
	}
}

// rest is a text to the end of a key: hex digits of bytes, or parts between zeros.
func (f *form) rest(name, as string) {
	if f.to == nil {
		b := f.key.b
		f.key.b = nil
		switch as {
		case "hex":
			f.out.put(name, hex.EncodeToString(b))
		case "parts":
			f.out.put(name, strings.Split(string(b), "\x00"))
		default:
			f.out.put(name, string(b))
		}
		return
	}
	switch as {
	case "hex":
		b, err := hex.DecodeString(f.text(name))
		if err != nil {
			f.fail("field %q: %v", name, err)
		}
		f.to.b = append(f.to.b, b...)
	case "parts":
		list, ok := f.take(name).([]any)
		parts := make([]string, len(list))
		for i := range list {
			part, isText := list[i].(string)
			parts[i], ok = part, ok && isText
		}
		if !ok {
			f.fail("field %q is not a list of texts", name)
		}
		f.to.b = append(f.to.b, strings.Join(parts, "\x00")...)
	default:
		f.to.b = append(f.to.b, f.text(name)...)
	}
}

// group is a part with a name of its own.
func (f *form) group(name string, walk func(*form)) {
	if f.to == nil {
		g := &form{from: f.from, out: &object{}}
		walk(g)
		f.out.put(name, g.out)
		return
	}
	in, ok := f.take(name).(map[string]any)
	if !ok {
		f.fail("field %q is not an object", name)
	}
	f.within(name, in, walk)
}

func (f *form) within(name string, in map[string]any, walk func(*form)) {
	g := &form{to: f.to, in: in}
	walk(g)
	if err := g.end(name); err != nil {
		f.fail("%s: %w", name, err)
	}
}

// optional is a part that is there or not; null says that it is not.
func (f *form) optional(name string, walk func(*form)) {
	if f.to == nil {
		if f.from.bool() {
			f.group(name, walk)
		} else {
			f.out.put(name, nil)
		}
		return
	}
	v, ok := f.in[name]
	f.to.bool(v != nil)
	if ok && v == nil {
		delete(f.in, name)
		return
	}
	f.group(name, walk)
}

// ifMore is a part that the end of the record may come before.
func (f *form) ifMore(name string, walk func(*form)) {
	if _, ok := f.in[name]; f.to == nil && f.from.more() || ok {
		f.group(name, walk)
	}
}

// tagged is a part behind a tag.
func (f *form) tagged(tag byte, name string, walk func(*form)) {
	if f.to == nil {
		if f.from.tagged(tag) {
			f.group(name, walk)
		}
		return
	}
	if _, ok := f.in[name]; ok {
		f.to.byte(tag)
		f.group(name, walk)
	}
}

// list is a count and so many parts.
func (f *form) list(name string, walk func(*form)) (n int) {
	if f.to == nil {
		n = f.from.count()
	} else {
		list, _ := f.in[name].([]any)
		n = len(list)
		f.to.uint(uint64(n))
	}
	f.listOf(name, n, walk)
	return n
}

func (f *form) listOf(name string, n int, walk func(*form)) {
	if f.to == nil {
		items := make([]*object, 0, n)
		for range n {
			g := &form{from: f.from, out: &object{}}
			walk(g)
			items = append(items, g.out)
		}
		f.out.put(name, items)
		return
	}
	list, ok := f.take(name).([]any)
	if !ok || len(list) != n {
		f.fail("field %q is not a list of %d objects", name, n)
		return
	}
	for i, item := range list {
		in, ok := item.(map[string]any)
		if !ok {
			f.fail("%s[%d] is not an object", name, i)
			return
		}
		f.within(fmt.Sprintf("%s[%d]", name, i), in, walk)
	}
}

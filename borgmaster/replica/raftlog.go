package replica

import (
	"context"
	"fmt"
	"log/slog"
)

// raftLogger gives raft's words to slog. What raft calls information is of use
// to those who look for a fault in raft.
type raftLogger struct{ log *slog.Logger }

func (l raftLogger) say(level slog.Level, text func() string) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, "raft", "says", text())
	}
}

func (l raftLogger) Debug(...any)          {}
func (l raftLogger) Debugf(string, ...any) {}

func (l raftLogger) Info(v ...any) {
	l.say(slog.LevelDebug, func() string { return fmt.Sprint(v...) })
}
func (l raftLogger) Infof(f string, v ...any) {
	l.say(slog.LevelDebug, func() string { return fmt.Sprintf(f, v...) })
}
func (l raftLogger) Warning(v ...any) {
	l.say(slog.LevelInfo, func() string { return fmt.Sprint(v...) })
}
func (l raftLogger) Warningf(f string, v ...any) {
	l.say(slog.LevelInfo, func() string { return fmt.Sprintf(f, v...) })
}
func (l raftLogger) Error(v ...any) {
	l.say(slog.LevelError, func() string { return fmt.Sprint(v...) })
}
func (l raftLogger) Errorf(f string, v ...any) {
	l.say(slog.LevelError, func() string { return fmt.Sprintf(f, v...) })
}
func (l raftLogger) Fatal(v ...any)            { panic(raftPanic{fmt.Sprint(v...)}) }
func (l raftLogger) Fatalf(f string, v ...any) { panic(raftPanic{fmt.Sprintf(f, v...)}) }
func (l raftLogger) Panic(v ...any)            { panic(raftPanic{fmt.Sprint(v...)}) }
func (l raftLogger) Panicf(f string, v ...any) { panic(raftPanic{fmt.Sprintf(f, v...)}) }

// raftPanic is what raft says when it cannot go on: most often that the other
// replicas were told of entries that the log no longer has.
type raftPanic struct{ msg string }

func (p raftPanic) Error() string { return "raft: " + p.msg }

// catchRaft makes such a panic an error.
func (r *Replica) catchRaft(err *error) {
	switch p := recover().(type) {
	case nil:
	case raftPanic:
		*err = r.fatal("what it has on disk is not what it told the others; remove it from the cell and join with a new number by `borgmaster init --join`", p)
	default:
		panic(p)
	}
}

package main

import (
	"fmt"
	"strconv"
	"strings"

	"borg/cfg"
	"borg/cli"
)

// jobName is "<user>/<name>" in two parts.
type jobName struct{ user, name string }

func (j jobName) String() string { return j.user + "/" + j.name }

// job reads NAME or USER/NAME.
func (s *session) job(arg string) (jobName, error) {
	user, name, ok := strings.Cut(arg, "/")
	if !ok {
		own, err := s.user()
		if err != nil {
			return jobName{}, err
		}
		user, name = own, arg
	}
	if strings.Contains(name, "/") {
		return jobName{}, cli.Errorf(cli.Usage, "%q is not a job", arg).Hint("a job is NAME or USER/NAME; this looks like a task")
	}
	if cfg.DNSLabel(user) != user || cfg.DNSLabel(name) != name || name == "" {
		e := cli.Errorf(cli.Usage, "%q is not a job: names have letters a-z, digits and dashes", arg)
		if near := cfg.DNSLabel(name); near != "" && near != name {
			return jobName{}, e.Hint("did you mean %q?", near)
		}
		return jobName{}, e
	}
	return jobName{user, name}, nil
}

// task reads NAME/INDEX or USER/NAME/INDEX.
func (s *session) task(arg string) (jobName, uint32, error) {
	at := strings.LastIndexByte(arg, '/')
	if at < 0 {
		return jobName{}, 0, cli.Errorf(cli.Usage, "%q is not a task", arg).Hint("name one of its tasks by number: %s/0", arg)
	}
	index, err := strconv.ParseUint(arg[at+1:], 10, 32)
	if err != nil {
		of := arg
		if _, err := strconv.Atoi(arg[at+1:]); err == nil || arg[at+1:] == "" {
			of = arg[:at]
		}
		return jobName{}, 0, cli.Errorf(cli.Usage, "%q is not a task: %q is not the number of one", arg, arg[at+1:]).Hint("name one of its tasks by number: %s/0", of)
	}
	job, err := s.job(arg[:at])
	return job, uint32(index), err
}

// short is a name as its owner would type it.
func (s *session) short(user, name string) string {
	if own, err := s.user(); err == nil && own == user {
		return name
	}
	return user + "/" + name
}

// pairs reads KEY=VALUE arguments.
func pairs(flag string, list []string) (map[string]string, error) {
	out := make(map[string]string, len(list))
	for _, item := range list {
		key, value, ok := strings.Cut(item, "=")
		if !ok || key == "" {
			return nil, cli.Errorf(cli.Usage, "%s %q is not KEY=VALUE", flag, item).Hint("write %s %s=VALUE", flag, orKey(key))
		}
		if _, twice := out[key]; twice {
			return nil, cli.Errorf(cli.Usage, "%s %s is given twice", flag, key)
		}
		out[key] = value
	}
	return out, nil
}

func orKey(key string) string {
	if key == "" {
		return "KEY"
	}
	return key
}

func taskName(user, name string, index uint32) string {
	return fmt.Sprintf("%s/%s/%d", user, name, index)
}

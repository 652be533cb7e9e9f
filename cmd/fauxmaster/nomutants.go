//go:build !mutants

package main

import ucli "github.com/urfave/cli/v2"

// mutantCommands are those of a build that can plant mutants: this one cannot.
func mutantCommands() []*ucli.Command { return nil }

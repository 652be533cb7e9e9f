//go:build mutants

package main

func writeMutantFigures(file string, killed, survived int) error { return nil }

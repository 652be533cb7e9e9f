//go:build mutants

package mutant

// planted is the one that is in; empty: none.
var planted Name

// Plant puts a mutant in, in place of any other; empty: none. It is called
// before anything runs.
func Plant(name Name) { planted = name }

// Planted tells whether a mutant is in.
func Planted(name Name) bool { return planted == name }

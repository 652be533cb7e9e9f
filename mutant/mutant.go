// Package mutant names bugs that can be planted in the code that runs in
// production, one at a time, to see whether the simulator finds them. A
// simulator that has never found a known bug says nothing by finding none.
//
// Each is an `if mutant.Planted(mutant.X)` at the one line where the real bug
// would be. In an ordinary build Planted is the constant false, so the compiler
// leaves the bug out: no program that is built without the tag mutants holds
// one. With the tag, Plant chooses one for the life of the process.
//
// The package imports nothing and decides nothing; docs/mutants.md says how to
// add one.
package mutant

// Name of a mutant, as it is typed.
type Name string

// Mutant is one bug that can be planted.
type Mutant struct {
	Name Name
	// Plants says in one sentence what is wrong with it in.
	Plants string
	// Failure is where it happened to others; Ours: nowhere that we know of.
	Failure string
	// Caught is the letter of the invariant that should find it. Another one may
	// be first, or the program's own assertions.
	Caught string
	// Aim is the preset of the simulator that goes where it can be seen.
	Aim string
}

// Ours says that a mutant is no failure that we know from elsewhere.
const Ours = "ours"

// Package cfg turns job files into the specs that a cell takes.
//
// A job file is Starlark (.borg), YAML or JSON. Whatever its language, it is
// first read into one tree of values that remember where they were written,
// and that tree is then decoded into borgpb messages, given its defaults and
// validated. So an error in any of them names file, line and column, shows the
// line with a caret, and says what to type instead.
//
// Evaluation is hermetic and bounded: a file sees its parameters and the files
// it loads from its own directory, nothing else, and is stopped when it takes
// too many steps, too much memory or too long. The same input gives the same
// bytes.
package cfg

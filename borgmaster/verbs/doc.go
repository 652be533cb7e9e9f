// Package verbs lists what people may ask `borgcfg can-i` about, and what each of these
// verbs is about. The masters answer by it, and borgcfg reads by it which name is meant.
//
// It decides nothing: who may do what is decided by the masters, in the cell as it is then.
package verbs

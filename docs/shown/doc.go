// Package shown reads the command lines that the pages of docs/ and the README show, so
// that tests can hold the programs to them. Each is of somebody: of a user unless the
// page says that it is an admin's or a task's.
package shown

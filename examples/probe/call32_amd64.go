//go:build linux

package main

// call32 makes a system call as a 32-bit program would.
func call32(number uintptr) uintptr

// callOtherKind asks for the process's number, as 32-bit programs know it.
func callOtherKind() { call32(20) }

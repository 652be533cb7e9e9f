// Package sockets says which tasks hold too much of what all tasks of a machine share, and
// reads the kernel's tables of sockets. It is pure: package borglet/container reads the files.
//
// Four things are shared by the sockets of a machine and bounded by no cgroup: messages that the
// kernel has queued for netlink sockets, datagrams queued for UDP sockets, and the TCP and UDP
// ports that the kernel gives out. The fifth, processes, has a bound of all tasks together, which
// a few tasks can reach. The sixth is the machine code of filters of system calls (seccomp),
// which the kernel bounds for the machine. A task may hold an eighth of each, all tasks together
// a half; of processes and filters, all that are not production.
//
// The kernel tells the memory of all filters and the number that each thread has, its parent's
// among them. So production ends only for what it holds if its filters are the smallest of the
// machine, and other tasks for what they hold if theirs are of average size.
package sockets

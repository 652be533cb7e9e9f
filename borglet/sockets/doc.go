// Package sockets says which tasks hold too much of what the sockets of a machine share, and
// reads the kernel's tables of sockets. It is pure: package borglet/container reads the files.
//
// Four things are shared by all tasks of a machine and bounded by no cgroup: messages that the
// kernel has queued for netlink sockets, datagrams queued for UDP sockets, and the TCP and UDP
// ports that the kernel gives out. A task may hold an eighth of each, all tasks together a half.
package sockets

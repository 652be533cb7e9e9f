// Package borgrpc is the wire: the services of masters, schedulers, borglets
// and raft, and their requests and responses. Messages that also stand in the
// log or in a checkpoint belong to borgpb.
package borgrpc

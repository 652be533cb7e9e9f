package sim

// A call is what gRPC makes of the network: what is lost is sent again, a
// process that dies breaks the connections to it, and nobody listens where none
// lives. Only a host without power, a cut link and a stopped process are silent.
type call struct {
	from   int
	broken func()
	ended  bool
}

// What is lost is sent again after so long, doubled each time; a connection that
// carries nothing for so long is given up by its keepalive.
const (
	resendNs = 200 * millisecond
	giveUpNs = 15 * second
)

// ask carries a call to a replica: serve runs in its process. broken may run
// instead, or after it. The one who asks sets ended when he waits no more.
func (w *World) ask(from int, to *replicaNode, serve, broken func()) *call {
	c := &call{from: from, broken: broken}
	end := replicaEnd(to.id)
	w.carry(from, end, func() {
		switch {
		case c.ended:
		case to.up:
			for len(to.calls) > 0 && to.calls[0].ended {
				to.calls = to.calls[1:]
			}
			to.calls = append(to.calls, c)
			to.arrive(serve)
		case to.powerless:
			to.calls = append(to.calls, c)
		default:
			w.carry(end, from, c.breakOff)
		}
	})
	return c
}

func (c *call) breakOff() {
	if !c.ended {
		c.broken()
	}
}

// breakCalls ends the connections to a process that is no more.
func (w *World) breakCalls(to *replicaNode) {
	for _, c := range to.calls {
		if !c.ended {
			w.carry(replicaEnd(to.id), c.from, c.breakOff)
		}
	}
	to.calls = nil
}

// carry brings something over a connection, once.
func (w *World) carry(from, to int, deliver func()) {
	if from == to {
		w.send(from, to, deliver)
		return
	}
	arrived := false
	var try func(waitNs int64)
	try = func(waitNs int64) {
		w.send(from, to, func() {
			if !arrived {
				arrived = true
				deliver()
			}
		})
		if waitNs < giveUpNs {
			w.after(waitNs, func() {
				if !arrived {
					try(2 * waitNs)
				}
			})
		}
	}
	try(resendNs)
}

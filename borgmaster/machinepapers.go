package borgmaster

import (
	"sync"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// papersEvery is how often a replica tells the elected one of its machines' certificates.
	papersEvery = 20 * time.Second
	// papersFresh is for how long what was heard of a machine's certificate is told.
	papersFresh = 10 * time.Minute
)

// machinePapers is until when the certificates of machines count. Each replica sees
// those of the machines that it calls, and tells the elected one.
type machinePapers struct {
	mu sync.Mutex
	// When this replica told last. Guarded by mu, as is the rest.
	told time.Time
	// As the elected master has heard, by machine.
	heard map[string]heardPaper
	swept time.Time
}

type heardPaper struct {
	at      time.Time
	untilNs int64
}

// tell adds to a report what this replica has seen, once in a while.
func (p *machinePapers) tell(now time.Time, seen func() []seenCertificate, req *borgrpc.ReportRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.told) < papersEvery {
		return
	}
	for _, s := range seen() {
		p.told = now
		req.Certificates = append(req.Certificates, &borgrpc.MachineCertificate{Machine: s.machine, UntilWallNs: s.expires.UnixNano()})
	}
}

// hear takes in a report: the last word on a machine counts.
func (p *machinePapers) hear(now time.Time, certificates []*borgrpc.MachineCertificate) {
	if len(certificates) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.heard == nil {
		p.heard = make(map[string]heardPaper)
	}
	if now.Sub(p.swept) > papersFresh {
		p.swept = now
		for name, h := range p.heard {
			if now.Sub(h.at) > papersFresh {
				delete(p.heard, name)
			}
		}
	}
	for _, c := range certificates {
		if _, known := p.heard[c.Machine]; known || len(p.heard) < maxConns {
			p.heard[c.Machine] = heardPaper{now, c.UntilWallNs}
		}
	}
}

// fill says of machines until when their certificates count.
func (p *machinePapers) fill(now time.Time, machines []*borgpb.Machine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range machines {
		if h, ok := p.heard[m.GetMeta().GetName()]; ok && now.Sub(h.at) <= papersFresh {
			m.Status.CertificateUntilWallNs = h.untilNs
		}
	}
}

package borgmaster

import (
	"testing"

	"google.golang.org/grpc"

	"borg/borgmaster/admission"
)

// registrar keeps which services are registered.
type registrar []*grpc.ServiceDesc

func (r *registrar) RegisterService(s *grpc.ServiceDesc, _ any) { *r = append(*r, s) }

// TestCallsAreComplete: of each call of a master it is said what it looks at, and of no other.
func TestCallsAreComplete(t *testing.T) {
	var served registrar
	new(Master).RegisterServices(&served)
	left := map[string]bool{}
	for method := range calls {
		left[method] = true
	}
	look := func(service, name string) {
		method := "/" + service + "/" + name
		if calls[method] == isUnknown {
			t.Errorf("%s: nothing says what it looks at; see calls.go", method)
		}
		delete(left, method)
	}
	for _, s := range served {
		for _, m := range s.Methods {
			look(s.ServiceName, m.MethodName)
		}
		for _, m := range s.Streams {
			look(s.ServiceName, m.StreamName)
		}
	}
	for method := range left {
		t.Errorf("%s: there is no such call", method)
	}
}

// TestReadsOfAllObjectsCost: a call that looks at all machines or jobs costs its user as much as
// a list, and so has a turn.
func TestReadsOfAllObjectsCost(t *testing.T) {
	for method, opens := range map[string]bool{
		"RestoreService/GetRestore": false, "MasterService/ListMachines": false, "MasterService/Examine": false, "MasterService/GetLabelPolicy": true,
		"MasterService/Events": true, "HistoryService/History": true, "AuditService/Audit": true, "WatchService/Watch": true, "FileService/WatchFiles": true,
	} {
		kind := calls["/borgrpc."+method]
		if got := kind.cost(); got != admission.ListCost || kind.opens() != opens {
			t.Errorf("%s costs %d and opens something: %v, want %d and %v", method, got, kind.opens(), admission.ListCost, opens)
		}
	}
}

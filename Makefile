# `make help` lists the targets.

GO       ?= go
BIN      := bin
PROGRAMS := borgmaster borglet borgcfg fauxmaster borgcell
BENCH    ?= all
FUZZTIME ?= 20s
SEED     ?= 1
SEEDS    ?= 1
VERSION  ?=
# Tasks run behind a filter of system calls if libseccomp is there.
TAGS     ?= $(shell pkg-config --exists libseccomp 2>/dev/null && echo seccomp)
TASKS    ?= 10000
SAMPLE   ?= 200
PACKAGES ?= ./...
AGAINST  ?=
PAIRS    ?= 3
DURATION ?= $(if $(filter 1,$(SEEDS)),10s,30s)

.DEFAULT_GOAL := build
.PHONY: help build static demo cell test e2e check lint race chaos soak proto bench fuzz sim sim-disk mutants mutation mutants-real clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

build: ## all five programs, the example server, the auditor and the probe, into bin/
	@mkdir -p $(BIN)
	@test -n "$(TAGS)" || echo "no libseccomp: tasks will run without a filter of system calls (apt-get install libseccomp-dev pkg-config)"
	$(GO) build -buildvcs=auto -tags '$(TAGS)' -o $(BIN)/ $(addprefix ./cmd/,$(PROGRAMS))
	CGO_ENABLED=0 $(GO) build -buildvcs=auto -o $(BIN)/hello ./examples/hello
	CGO_ENABLED=0 $(GO) build -buildvcs=auto -o $(BIN)/auditor ./examples/auditor
	CGO_ENABLED=0 $(GO) build -buildvcs=auto -o $(BIN)/probe ./examples/probe

# What masters do under load, by which the compiler is guided (docs/master.md). It compiles all
# packages once more, so that only what is installed or measured is built so.
GUIDED := -pgo=$(CURDIR)/cmd/borgmaster/masters.pgo
# Only containers want cgo; all other programs do without a C compiler.
STATIC = $(GO) build -buildvcs=auto -o $(BIN)/static/

static: ## the programs for other machines, without libraries, into bin/static/: make static [VERSION=1.0]
	@mkdir -p $(BIN)/static
	CGO_ENABLED=0 $(STATIC) $(GUIDED) -ldflags '-X borg/cli.version=$(VERSION)' ./cmd/borgmaster
	CGO_ENABLED=0 $(STATIC) -ldflags '-X borg/cli.version=$(VERSION)' $(addprefix ./cmd/,$(filter-out borglet borgmaster,$(PROGRAMS)))
	CGO_ENABLED=1 $(STATIC) -ldflags '-X borg/cli.version=$(VERSION) -linkmode external -extldflags -static' -tags '$(TAGS) netgo osusergo' ./cmd/borglet

demo: build ## a cell of five masters and three borglets: real jobs, killed masters, clean end
	$(BIN)/borgcell demo

cell: build ## the same cell to play with, until Ctrl-C
	$(BIN)/borgcell run

# The program says how far it is, and ends a test that hangs (suite/main.go). Lint vets all packages, so go test need not.
SUITE := $(GO) run ./suite
# The longest packages of make test. They start first, so that none of them runs alone at the end.
LONG  := ./fauxmaster/sim ./borgmaster ./cmd/borgcfg ./proto/door ./fauxmaster ./fauxmaster/plan ./checkpoint
# What starts cells, borglets or other programs of ours as processes, or many cells of the simulator. The longest comes first.
E2E   := ./cmd/borgcell ./cmd/borglet ./fauxmaster/sim ./deploy ./cmd/fauxmaster ./suite

test: ## every test that starts no program of ours; about four minutes on two cores
	$(SUITE) $(LONG) ./... -- -short -p $$(($$(nproc) + 2)) -vet=off -tags '$(TAGS)'

# Tests wait for much, so more packages run at a time than there are cores.
e2e: build ## real cells, containers, an installation, each test with its time: make e2e [RUN=Scenario38]; about nine minutes
	BORG_BIN=$(CURDIR)/$(BIN) $(SUITE) -each $(E2E) -- -p $$(($$(nproc) + 1)) -vet=off -tags '$(TAGS)' $(if $(RUN),-run '$(RUN)')

# The packages with files that are built only with planted bugs.
PLANTED = $$(git grep -lE '^//go:build.*mutants' -- '*.go' | xargs -n1 dirname | sort -u | sed 's,^,./,')

# With the tags of the other targets, which then find everything compiled.
lint: ## format, vet, modernisers, staticcheck, go.mod
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not formatted (run gofmt -w):"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet -tags '$(TAGS)' ./...
	$(GO) vet -tags 'mutants $(TAGS)' $(PLANTED)
	CGO_ENABLED=0 $(GO) vet ./borglet/... ./cmd/borglet
	$(GO) fix -diff -tags '$(TAGS)' ./...
	$(GO) tool staticcheck -tags '$(TAGS)' ./...
	$(GO) mod tidy -diff

check: lint test ## what every commit passes: lint and test

race: build ## every test under the race detector, those of e2e too
	BORG_BIN=$(CURDIR)/$(BIN) $(SUITE) ./... -- -race -tags '$(TAGS)'

chaos: build ## real cells killed, cut off, filled up, in full size (about 65 minutes); merges bin/bench.json
	BORG_BIN=$(CURDIR)/$(BIN) BORG_CHAOS=full BORG_FIGURES=$(CURDIR)/$(BIN)/bench.json \
		$(GO) test -tags '$(TAGS)' ./cmd/borglet ./cmd/borgcell -v -p 1 -count=1 -timeout 90m

soak: build ## 10,000 containers started and stopped, their borglet killed 100 times among them: make soak [TASKS=10000]
	BORG_BIN=$(CURDIR)/$(BIN) BORG_SOAK=$(TASKS) $(GO) test -tags '$(TAGS)' ./cmd/borglet -run TestSoak -v -count=1 -timeout 180m

proto: ## regenerate the Go beside the .proto files (needs protoc)
	proto/generate.sh

bench: build ## measure: make bench [BENCH=cell|sched|traces|checkpoint|linkshard|borglet|master|fill|scarce|outage|coverage|throughput|million|reads|flood|hostile|tls|slow|failover|faux|all]; merges bin/bench.json; AGAINST=REV builds that revision, measures both by turns, PAIRS=3 times, and prints the ratios; MACHINES=n sizes cells; MINUTES=10 is how long each attack of hostile lasts
	$(GO) build -buildvcs=auto -tags '$(TAGS)' $(GUIDED) -o $(BIN)/ ./cmd/borgmaster
	BORG_BIN=$(CURDIR)/$(BIN) $(if $(MACHINES),BORG_BENCH_MACHINES=$(MACHINES)) $(if $(MINUTES),BORG_BENCH_MINUTES=$(MINUTES)) $(GO) run ./bench -out $(BIN)/bench.json -tags '$(TAGS)' \
		$(if $(AGAINST),-against '$(AGAINST)' -pairs $(PAIRS)) $(BENCH)

# To make an input small that is only interesting may otherwise take all of the time.
fuzz: ## every fuzz target for FUZZTIME (20s)
	@for dir in $$(git grep -l '^func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u); do \
		for f in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go | cut -c6-); do \
			echo "== ./$$dir $$f"; $(GO) test ./$$dir -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x || exit 1; \
		done; \
	done

sim: ## whole cells with faults, from seeds: make sim [SEED=1] [SEEDS=1] [DURATION=30s] [TRACE=1] [STATE=file] [REPLAY=n]
	@mkdir -p $(BIN)
	@$(GO) build -buildvcs=auto -o $(BIN)/ ./cmd/fauxmaster
	@$(BIN)/fauxmaster faults --seed $(SEED) --seeds $(SEEDS) --duration $(DURATION) $(if $(TRACE),--trace) \
		$(if $(STATE),--state $(STATE)) $(if $(REPLAY),--replay $(REPLAY)) $(if $(filter 1,$(SEEDS)),,--bench $(BIN)/bench.json)

sim-disk: ## a disk that fails at each write of a run, in each role and way: make sim-disk [SEED=1] [EVERY=1] [STATE=file]; merges bin/bench.json
	@mkdir -p $(BIN)
	@$(GO) build -buildvcs=auto -o $(BIN)/ ./cmd/fauxmaster
	@$(BIN)/fauxmaster faults --disk-sweep --seed $(SEED) --bench $(BIN)/bench.json \
		$(if $(EVERY),--every $(EVERY)) $(if $(STATE),--state $(STATE))

mutants: ## plant each known bug and see that the simulator finds it: make mutants [ONLY=name]; merges bin/bench.json
	@mkdir -p $(BIN)
	$(GO) build -tags mutants -o $(BIN)/fauxmaster-mutants ./cmd/fauxmaster
	$(BIN)/fauxmaster-mutants mutants --bench $(BIN)/bench.json $(if $(ONLY),--only $(ONLY))

mutation: ## write small bugs that nobody chose into the source and count how many the tests see: make mutation [PACKAGES=./...] [SAMPLE=200] [SEED=1]; goes on where it stopped; merges bin/bench.json
	@mkdir -p $(BIN)
	$(GO) run ./mutation -tags '$(TAGS)' -sample $(SAMPLE) -seed $(SEED) -state $(BIN)/mutation.json -bench $(BIN)/bench.json $(PACKAGES)

mutants-real: ## plant known bugs in a real borglet and see that its tests with real containers find them
	$(GO) test -tags 'mutants $(TAGS)' ./cmd/borglet -run 'TestMutants$$' -v -count=1 -timeout 30m

clean: ## bin/ and the state of borgcell
	rm -rf $(BIN) .borg

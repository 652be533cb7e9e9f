#!/bin/sh
# Regenerates the Go code beside the .proto files and records what it was made
# from. Needs protoc (Debian: protobuf-compiler); the plug-ins are pinned in go.mod.
set -eu
cd "$(dirname "$0")"
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -o "$bin" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
PATH="$bin:$PATH" protoc -I . \
	--go_out=.. --go_opt=module=borg \
	--go-grpc_out=.. --go-grpc_opt=module=borg \
	borgpb/*.proto borgrpc/*.proto
sha256sum borgpb/*.proto borgrpc/*.proto >generated.sha256

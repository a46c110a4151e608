#!/bin/sh
# Generate the protobuf code that is committed: messages into wire/proto, the gRPC stubs into
# transport/rpc (they import grpc, which wire must not), and the profile format of pprof.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
PATH="$(dirname "$python"):$PATH"
export PATH
"$python" -m grpc_tools.protoc -I wire/proto \
    --python_out=wire/proto --mypy_out=wire/proto \
    --grpc_python_out=transport/rpc --mypy_grpc_out=transport/rpc \
    pointillist.proto
# The generator imports by file name; the packages here import absolutely.
sed -i 's/^import pointillist_pb2 as/from wire.proto import pointillist_pb2 as/' \
    transport/rpc/pointillist_pb2_grpc.py
sed -i 's/^import pointillist_pb2 as _/from wire.proto import pointillist_pb2 as _/' \
    transport/rpc/pointillist_pb2_grpc.pyi
"$python" -m grpc_tools.protoc -I collectors/profiling \
    --python_out=collectors/profiling --mypy_out=collectors/profiling pprof.proto

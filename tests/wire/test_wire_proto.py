"""The committed protobuf code is what the schema generates, and its numbers are the code's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from wire.envelope import Kind
from wire.fields import Scheme
from wire.proto import pointillist_pb2 as pb
from wire.task import _KINDS, _SCHEMES

ROOT = Path(__file__).resolve().parents[2]


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    schema = ROOT / "wire" / "proto"
    flags = [f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}", "-I", str(schema)]
    command = [sys.executable, "-m", "grpc_tools.protoc", *flags, "pointillist.proto"]
    subprocess.run(command, check=True)
    made = (tmp_path / "pointillist_pb2.py").read_text()
    assert made == (schema / "pointillist_pb2.py").read_text(), "run scripts/gen_proto.sh"
    stubs = (tmp_path / "pointillist_pb2_grpc.py").read_text()
    stubs = stubs.replace(
        "\nimport pointillist_pb2 as", "\nfrom wire.proto import pointillist_pb2 as"
    )
    committed = (ROOT / "transport" / "rpc" / "pointillist_pb2_grpc.py").read_text()
    assert stubs == committed, "run scripts/gen_proto.sh"


def test_generated_profile_format_is_up_to_date(tmp_path: Path) -> None:
    schema = ROOT / "collectors" / "profiling"
    flags = [f"--python_out={tmp_path}", "-I", str(schema)]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *flags, "pprof.proto"], check=True)
    made = (tmp_path / "pprof_pb2.py").read_text()
    assert made == (schema / "pprof_pb2.py").read_text(), "run scripts/gen_proto.sh"


def test_numbers_of_the_schema_are_the_codes() -> None:
    assert {f"KIND_{kind.name}": kind.value for kind in Kind} == dict(pb.Kind.items()[1:])
    schemes = {f"SCHEME_{Scheme(one).name}": number for number, one in _SCHEMES.items()}
    assert schemes == dict(pb.Scheme.items()[1:])
    kinds = {f"SECTION_KIND_{one.name}": number for number, one in _KINDS.items()}
    assert kinds == dict(pb.SectionKind.items()[1:])

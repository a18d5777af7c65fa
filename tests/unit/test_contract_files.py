"""The files of the contract: options that name the generated code of each language, and modules that need no registry."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib import import_module
from pathlib import Path

import pytest
from google.protobuf.descriptor import FileDescriptor

from tests.support.paths import ROOT

FILES = sorted(path.stem for path in (ROOT / "proto/gavel/v1").glob("*.proto"))


def language_options(stem: str) -> dict[str, object]:
    """Return the options that every file of the contract sets, with the values for this file."""
    return {
        "csharp_namespace": "Gavel.V1",
        "go_package": "github.com/gavel-dev/gavel/client/go/gavel/v1;gavelv1",
        "java_multiple_files": True,
        "java_outer_classname": "".join(word.capitalize() for word in stem.split("_")) + "Proto",
        "java_package": "dev.gavel.v1",
        "objc_class_prefix": "GVL",
    }


@pytest.mark.parametrize("stem", FILES)
def test_language_options(stem: str) -> None:
    """Each file names the packages of its generated code; without these options Go generates nothing, and Java hides classes."""
    file: FileDescriptor = import_module(f"gavel.v1.{stem}_pb2").DESCRIPTOR
    options = file.GetOptions()
    expected = language_options(stem)
    assert expected == {name: getattr(options, name) for name in expected}, f"correct the options of proto/gavel/v1/{stem}.proto"


@pytest.mark.parametrize("name", ["error_details", "status"])
def test_vendored_files_of_google(name: str) -> None:
    """The vendored files of google.rpc are those of the pinned googleapis-common-protos, licence included."""
    installed = Path(sysconfig.get_path("purelib")) / f"google/rpc/{name}.proto"
    vendored = ROOT / f"proto/google/rpc/{name}.proto"
    assert installed.read_bytes() == vendored.read_bytes(), f"copy {installed} to {vendored}"
    assert "Licensed under the Apache License, Version 2.0" in vendored.read_text(encoding="utf-8")


def test_protoc_needs_no_other_directory(tmp_path: Path) -> None:
    """`protoc -Iproto` alone compiles every file of the contract."""
    files = [f"gavel/v1/{stem}.proto" for stem in FILES]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--descriptor_set_out={tmp_path / 'image'}", *files]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "image").stat().st_size > 0


def test_buf_needs_no_registry(tmp_path: Path) -> None:
    """`buf build` and `buf lint` read proto/ as modules whose imports all are in it, with an empty cache and no configuration."""
    environment = {"PATH": str(Path(sys.executable).parent), "HOME": str(tmp_path), "BUF_CACHE_DIR": str(tmp_path / "cache")}
    for command in ("build", "lint"):
        subprocess.run(["buf", command, str(ROOT / "proto")], cwd=tmp_path, env=environment, check=True, timeout=60)

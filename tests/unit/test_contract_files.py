"""The files of the contract: options that name the generated code of each language."""

from __future__ import annotations

from importlib import import_module

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

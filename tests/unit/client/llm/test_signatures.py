"""The layers show types of their own and JSON, never a type of a provider's SDK."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import gavel_client.llm
import pytest

SDKS = ("openai", "anthropic", "httpx", "pydantic")


def public_objects() -> Iterator[tuple[str, object]]:
    """Yield the public functions, classes and methods of the layers."""
    for module_info in pkgutil.walk_packages(gavel_client.llm.__path__, "gavel_client.llm."):
        module = importlib.import_module(module_info.name)
        for name, item in vars(module).items():
            if name.startswith("_") or getattr(item, "__module__", None) != module.__name__:
                continue
            yield f"{module.__name__}.{name}", item
            if inspect.isclass(item):
                yield from (
                    (f"{module.__name__}.{name}.{member}", value) for member, value in vars(item).items() if not member.startswith("_")
                )


@pytest.mark.parametrize("sdk", SDKS)
def test_no_sdk_type_is_in_a_signature(sdk: str) -> None:
    """No annotation of a public function, method or field names a type of a provider's SDK."""
    annotated = {name: _annotations(item) for name, item in public_objects()}
    assert len(annotated) > 100
    assert [] == [name for name, annotations in annotated.items() if any(sdk in annotation for annotation in annotations)]


def test_an_sdk_type_would_be_found() -> None:
    """The search finds an SDK's type where one is, in a private function."""
    from gavel_client.llm.providers import openai_sdk

    assert any("openai" in annotation for annotation in _annotations(openai_sdk._client))


def _annotations(item: object) -> list[str]:
    return [str(annotation) for annotation in getattr(item, "__annotations__", {}).values()]

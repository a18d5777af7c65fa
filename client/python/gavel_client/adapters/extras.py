"""The error of an adapter whose framework is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Name the extra of gavel-client that brings a package which the block cannot import. Raises ImportError."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f'this adapter needs the extra {name}; install it: pip install "gavel-client[{name}]" ({error})') from error

"""The settings of the garbage collector, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc, weakref
from gavel_server.process.garbage_collection import collect_less

class Node:
    pass

def cycle():
    one, other = Node(), Node()
    one.other, other.other = other, one
    return one

collect_less()
old = cycle()
gone = weakref.ref(old)
gc.collect(0)
print(any(one is old for one in gc.get_objects()))
del old
gc.collect(1)
print(gone() is None)
gc.collect()
print(gone() is None)
young = weakref.ref(cycle())
gc.collect(0)
print(young() is None)
"""


def test_survivors_wait_for_the_oldest_generation() -> None:
    """A survivor of a collection is skipped by the next ones, but not by that of the oldest generation; young garbage is freed at once."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    skipped, freed_early, freed, young_freed = done.stdout.split()
    assert ("False", "False", "True", "True") == (skipped, freed_early, freed, young_freed)

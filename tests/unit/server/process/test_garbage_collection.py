"""The settings of the garbage collector, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

from gavel_server.process.garbage_collection import is_due

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

# Each new object takes the place of an old one, so that Python's own count of young objects stays where it is.
_REPLACEMENT = """
import asyncio, gc
from gavel_server.process import garbage_collection

async def main():
    old = [[number] for number in range(150_000)]
    garbage_collection.collect_less()
    garbage_collection.YOUNG_SECONDS = 0.01
    before = gc.get_freeze_count()
    collecting = asyncio.create_task(garbage_collection.collect_young_forever())
    new = []
    while old:
        old.pop()
        new.append([0])
        if len(new) % 1_000 == 0:
            await asyncio.sleep(0)
    while len(gc.get_objects(generation=0)) > 1_000:
        await asyncio.sleep(0.01)
    collecting.cancel()

asyncio.run(asyncio.wait_for(main(), 60))
"""

# A cycle that was alive at a collection, and is garbage now.
_OLD_GARBAGE = """
import asyncio, gc, weakref
from gavel_server.process import garbage_collection

class Node:
    pass

async def main():
    garbage_collection.collect_less()
    garbage_collection.OLDEST_SECONDS, garbage_collection.COLLECTION_SECONDS = 0.02, 0.0001
    node = Node()
    node.itself = node
    gone = weakref.ref(node)
    gc.collect(0)
    del node
    collecting = asyncio.create_task(garbage_collection.collect_oldest_forever())
    while gone() is not None:
        sum(range(300_000))  # a collection is due after work
        await asyncio.sleep(0)
    collecting.cancel()

asyncio.run(asyncio.wait_for(main(), 120))
"""


def test_young_objects_that_replace_old_ones_are_collected() -> None:
    """Young objects do not gather while as many old ones are freed: a collection would look at all of them at once."""
    subprocess.run([sys.executable, "-c", _REPLACEMENT], check=True)


def test_old_garbage_is_collected() -> None:
    """A cycle that was alive at a collection and has died since is freed after some work."""
    subprocess.run([sys.executable, "-c", _OLD_GARBAGE], check=True)


def test_when_the_oldest_generation_is_due() -> None:
    """A collection is due after work in proportion to the time of the last one, and after four times as much if the server is busy."""
    assert [False, True] == [is_due(seconds, 0.5, is_quiet=True) for seconds in (249.0, 250.0)]
    assert [False, True] == [is_due(seconds, 0.5, is_quiet=False) for seconds in (999.0, 1_000.0)]


def test_survivors_wait_for_the_oldest_generation() -> None:
    """A survivor of a collection is skipped by the next ones, but not by that of the oldest generation; young garbage is freed at once."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    skipped, freed_early, freed, young_freed = done.stdout.split()
    assert ("False", "False", "True", "True") == (skipped, freed_early, freed, young_freed)

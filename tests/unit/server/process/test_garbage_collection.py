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

def is_looked_at(node):
    return any(one is node for one in gc.get_objects())

collect_less()
old = cycle()
gone = weakref.ref(old)
gc.collect(0)
print("once", is_looked_at(old))
gc.collect(1)
print("twice", is_looked_at(old))
del old
gc.collect(1)
print("early", gone() is None)
gc.collect()
print("late", gone() is None)
young = weakref.ref(cycle())
gc.collect(0)
print("young", young() is None)
call = cycle()
answered = weakref.ref(call)
gc.collect(0)
del call
gc.collect(1)
print("call", answered() is None)
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
    while len(gc.get_objects(generation=0)) > 1_000 or len(gc.get_objects(generation=1)) > 1_000:
        await asyncio.sleep(0.01)
    collecting.cancel()

asyncio.run(asyncio.wait_for(main(), 60))
"""

# A cycle that was alive at a collection, and is garbage now.
_OLD_GARBAGE = """
import asyncio, gc, itertools, weakref
from gavel_server.process import garbage_collection

class Node:
    pass

async def main():
    garbage_collection.collect_less()
    garbage_collection.OLDEST_SECONDS, garbage_collection.COLLECTION_SECONDS = 0.02, 0.00002
    node = Node()
    node.itself = node
    gone = weakref.ref(node)
    gc.collect(1)
    del node
    collecting = asyncio.create_task(garbage_collection.collect_oldest_forever(itertools.count().__next__))
    while gone() is not None:
        sum(range(300_000))  # a collection is due after work
        await asyncio.sleep(0)
    collecting.cancel()

asyncio.run(asyncio.wait_for(main(), 120))
"""

# A server that has calls and does little, for twenty looks, then has none.
_IDLE = """
import asyncio, gc
from gavel_server.process import garbage_collection

async def main():
    garbage_collection.collect_less()
    # Due after 0.001 s of work if the server is idle, and after 100 s if it is not.
    garbage_collection.OLDEST_SECONDS, garbage_collection.COLLECTION_SECONDS = 0.05, 0.00001
    garbage_collection.BUSY_WORK_FACTOR = 10_000_000
    generations = []
    gc.callbacks.append(lambda phase, info: generations.append(info["generation"]))
    calls = looks = 0

    def count_calls():
        nonlocal looks
        looks += 1
        return calls

    collecting = asyncio.create_task(garbage_collection.collect_oldest_forever(count_calls))
    while looks < 20:
        calls += 1
        await asyncio.sleep(0.01)
    print(2 in generations)
    while 2 not in generations:
        await asyncio.sleep(0.01)
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
    """A collection is due after work in proportion to the time of the last one, and after a hundred times as much with callers.

    The longer the last one took, the longer must no caller have come.
    """
    assert [False, True] == [is_due(seconds, 0.5, 10.0) for seconds in (49.0, 50.0)]
    assert [False, True] == [is_due(seconds, 0.5, 9.0) for seconds in (4_999.0, 5_000.0)]
    assert [False, True] == [is_due(1.0, 0.01, seconds) for seconds in (0.0, 1.0)]


def test_the_oldest_generation_waits_for_an_idle_moment() -> None:
    """Work after which an idle server collects the oldest generation does not make it do so while calls come."""
    done = subprocess.run([sys.executable, "-c", _IDLE], capture_output=True, text=True, check=True)
    assert "False" == done.stdout.strip()


def test_survivors_wait_for_the_oldest_generation() -> None:
    """Survivors of a middle collection are skipped by later ones, but not by that of the oldest generation; younger garbage is freed."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    expected = {"once": "True", "twice": "False", "early": "False", "late": "True", "young": "True", "call": "True"}
    assert expected == dict(line.split() for line in done.stdout.splitlines())

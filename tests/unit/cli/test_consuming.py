"""How `gavel executor` finds the handlers of a module, what it says of modules that have none, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gavel_server.cli.consuming import load_handlers
from gavel_server.cli.errors import InvalidInputError

HANDLERS = """
from gavel_client.handlers import ExecutionContext, Handlers, HandlerResult
from beside import ACTION

handlers = Handlers()


@handlers.action(ACTION)
async def send(context: ExecutionContext) -> HandlerResult:
    return HandlerResult.success()
"""


# What a handler may leave behind: a task that does not heed its cancellation, and a thread that never ends.
LEFT_BEHIND = {
    "task": """
async def stay():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
""",
    "thread": """
async def stay():
    await asyncio.to_thread(threading.Event().wait)
""",
}
LEAVING = """
import asyncio, threading
from gavel_server.cli import consuming
{stay}
async def work():
    staying.append(asyncio.create_task(stay()))
    await asyncio.sleep(0)

staying = []
consuming.LEAVE_SECONDS_MAX = 0.1
consuming._run(work)
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with modules, as the current one; what a test imports is forgotten after it."""
    (tmp_path / "parcels.py").write_text(HANDLERS)
    (tmp_path / "beside.py").write_text('ACTION = "parcel.send"\n')
    (tmp_path / "two.py").write_text("from gavel_client.handlers import Handlers\none = Handlers()\nother = Handlers()\n")
    (tmp_path / "none.py").write_text("from gavel_client.handlers import Handlers\n")
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "wrong.py").write_text("def\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("parcels", "beside", "two", "none", "broken", "wrong"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("name", ["parcels", "parcels.py", "parcels:handlers", "parcels.py:handlers", "../{directory}/parcels.py"])
def test_modules(tmp_path: Path, name: str) -> None:
    """A module is named as Python does or by its file; it may import what lies beside it."""
    assert ["parcel.send"] == list(load_handlers(name.format(directory=tmp_path.name)))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none.py", "it has none; declare one"),
        ("two.py", r"it has 2 \(one, other\); name one as two.py:NAME"),
        ("two:one", "two registers no action; decorate"),
        ("parcels:nothing", "parcels has no gavel_client.handlers.Handlers named nothing; it has handlers"),
        ("broken.py", "cannot import broken.py: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("wrong", "cannot import wrong: SyntaxError"),
        ("nowhere.py", "cannot import nowhere.py: FileNotFoundError"),
        ("nowhere", "cannot import nowhere: ModuleNotFoundError"),
        ("", "cannot import : ValueError"),
    ],
)
def test_modules_that_are_none(name: str, why: str) -> None:
    """A module without handlers, with several, and one that fails are refused with what to do."""
    with pytest.raises(InvalidInputError, match=why):
        load_handlers(name)


@pytest.mark.parametrize("what", LEFT_BEHIND)
def test_the_process_ends_without_what_does_not_end(what: str) -> None:
    """What a handler has left behind holds up the end of its process for a moment only, and the log says so."""
    program = LEAVING.format(stay=LEFT_BEHIND[what])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (1, True) == (done.returncode, "the process ends without it" in done.stderr), done.stderr

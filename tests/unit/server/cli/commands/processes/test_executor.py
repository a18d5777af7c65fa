"""How `gavel executor` finds the handlers of a module, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gavel_server.cli.commands.processes.executor import load_handlers
from gavel_server.cli.errors import InvalidInputError

HANDLERS = """
from gavel_client.handlers import ExecutionContext, Handlers, HandlerResult
from beside import ACTION

handlers = Handlers()


@handlers.action(ACTION)
async def send(context: ExecutionContext) -> HandlerResult:
    return HandlerResult.success()
"""


# Leftovers of a handler: a task that ignores its cancellation, and a thread that never ends.
LEFTOVERS = {
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
from gavel_server.cli import consumer
{stay}
async def work():
    staying.append(asyncio.create_task(stay()))
    await asyncio.sleep(0)

staying = []
consumer.LEAVE_SECONDS_MAX = 0.1
consumer.run_until_signal(work)
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a directory with modules; unload after the test what it imports."""
    (tmp_path / "parcels.py").write_text(HANDLERS)
    (tmp_path / "beside.py").write_text('ACTION = "parcel.send"\n')
    (tmp_path / "two.py").write_text("from gavel_client.handlers import Handlers\none = Handlers()\nother = Handlers()\n")
    (tmp_path / "none.py").write_text("from gavel_client.handlers import Handlers\n")
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "wrong.py").write_text("def\n")
    (tmp_path / "send.sh").write_text("echo\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("parcels", "beside", "two", "none", "broken", "wrong"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("name", ["parcels", "parcels.py", "parcels:handlers", "parcels.py:handlers", "../{directory}/parcels.py"])
def test_modules(tmp_path: Path, name: str) -> None:
    """A module is given by its name or its file, and can import its neighbours."""
    assert ["parcel.send"] == list(load_handlers(name.format(directory=tmp_path.name)))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none.py", "it has none; declare one"),
        ("two.py", r"it has 2 \(one, other\); name one as two.py:NAME"),
        ("two:one", "two registers no action; decorate"),
        ("parcels:nothing", "parcels has no gavel_client.handlers.Handlers named nothing; it has handlers"),
        ("broken.py", "cannot import broken.py: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("wrong", "cannot import wrong: SyntaxError"),
        ("nowhere.py", "there is no file nowhere.py; give a .py file or the name of a module"),
        ("nowhere", "cannot import nowhere: ModuleNotFoundError"),
        ("send.sh", "'send.sh' is neither a .py file nor the name of a module, e.g. refunds.py or package.refunds"),
        ("./parcels", "'./parcels' is neither a .py file nor the name of a module"),
        ("", "'' is neither a .py file nor the name of a module"),
    ],
)
def test_invalid_modules(name: str, reason: str) -> None:
    """A module without handlers, with several, or that fails to import is refused, and the message says what to do."""
    with pytest.raises(InvalidInputError, match=reason):
        load_handlers(name)


@pytest.mark.parametrize("what", LEFTOVERS)
def test_leftovers(what: str) -> None:
    """A task or thread that a handler has left running delays the end of the process only briefly, and the log says so."""
    program = LEAVING.format(stay=LEFTOVERS[what])
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (1, True) == (process.returncode, "the process ends without it" in process.stderr), process.stderr

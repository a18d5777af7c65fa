"""The workspace: reads, writes and patches behave as the contract says, and nothing leads out of the directory."""

from __future__ import annotations

import asyncio
import os
import random
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from gavel_client.tools import errors
from gavel_client.tools.errors import ToolError
from gavel_client.tools.providers import jail
from gavel_client.tools.providers.jail import Jail
from gavel_client.tools.providers.workspace import FILE_BYTES_MAX, Workspace

OUTSIDE = "the content of a file outside"
ESCAPES = 10_000
RACES = 2_000
CHANGES = 100


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory with a file, beside a file outside."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text(OUTSIDE)
    inside = tmp_path / "inside"
    (inside / "src").mkdir(parents=True)
    (inside / "src/a.txt").write_text("one two two\n")
    return inside


@pytest.fixture
def workspace(directory: Path) -> Iterator[Workspace]:
    """Serve the directory."""
    workspace = Workspace(directory, file_bytes_max=1000)
    yield workspace
    asyncio.run(workspace.close())


def code_of(call: Callable[[dict[str, Any]], object], **arguments: Any) -> str:
    """Return the code of a call that must fail."""
    with pytest.raises(ToolError) as failure:
        call(arguments)
    assert OUTSIDE not in str(failure.value)
    return failure.value.code


def test_reading(workspace: Workspace) -> None:
    """A file is read from an offset with a limit; the answer says whether more follows."""
    path = "/workspace/src/a.txt"
    assert ("one two two\n", False) == _part(workspace.read_text({"path": path}))
    assert ("two", True) == _part(workspace.read_text({"path": path, "offset": 4, "limit": 3.0}))
    assert errors.PATH == code_of(workspace.read_text, path="/workspace/src/b.txt")
    assert errors.PATH == code_of(workspace.read_text, path="/workspace/src")
    assert errors.ARGS == code_of(workspace.read_text, path=path, offset=-1)


def test_writing(workspace: Workspace, directory: Path) -> None:
    """A file is overwritten, appended to, or created if there is none; a refused write leaves everything as it was."""
    path = "/workspace/src/b.txt"
    workspace.write_text({"path": path, "text": "x", "mode": "create"})
    assert errors.CONFLICT == code_of(workspace.write_text, path=path, text="y", mode="create")
    workspace.write_text({"path": path, "text": "y", "mode": "append"})
    assert "xy" == (directory / "src/b.txt").read_text()
    workspace.write_text({"path": path, "text": "z"})
    assert errors.QUOTA == code_of(workspace.write_text, path=path, text="é" * 501)
    assert errors.ARGS == code_of(workspace.write_text, path=path, text="z", mode="truncate")
    assert errors.PATH == code_of(workspace.write_text, path="/workspace/no/b.txt", text="z")
    assert ("z", ["a.txt", "b.txt"]) == ((directory / "src/b.txt").read_text(), sorted(os.listdir(directory / "src")))


@pytest.mark.parametrize("names", [("old", "new"), ("find", "replace")])
def test_patching(workspace: Workspace, directory: Path, names: tuple[str, str]) -> None:
    """Both dialects replace a text that is there once, or everywhere with `all`; else nothing changes."""
    find, replace = names
    path = "/workspace/src/a.txt"
    assert errors.CONFLICT == code_of(workspace.patch_text, path=path, **{find: "three", replace: "3"})
    assert errors.CONFLICT == code_of(workspace.patch_text, path=path, **{find: "two", replace: "2"})
    assert errors.ARGS == code_of(workspace.patch_text, path=path, **{find: "", replace: "2"})
    assert "one two two\n" == (directory / "src/a.txt").read_text()
    workspace.patch_text({"path": path, find: "one", replace: "1"})
    assert 2 == workspace.patch_text({"path": path, find: "two", replace: "2", "all": True})["replacements"]
    assert "1 2 2\n" == (directory / "src/a.txt").read_text()


@pytest.mark.parametrize("names", [("old", "new"), ("find", "replace")])
def test_a_reader_sees_whole_files(workspace: Workspace, directory: Path, names: tuple[str, str]) -> None:
    """While a file is patched back and forth, written and created, every reader sees a whole content, and never a part of one."""
    find, replace = names
    versions = ["a" * 900, "b" * 800]
    target, created = directory / "src/a.txt", directory / "src/new.txt"
    target.write_text(versions[0])
    over = threading.Event()

    def change() -> None:
        for number in range(CHANGES):
            before, after = versions[number % 2], versions[(number + 1) % 2]
            workspace.patch_text({"path": "/workspace/src/a.txt", find: before, replace: after})
            workspace.write_text({"path": "/workspace/src/new.txt", "text": after, "mode": "create"})
            created.unlink()
        over.set()

    changing = threading.Thread(target=change)
    changing.start()
    texts: set[str] = set()
    while not over.is_set():
        texts.add(target.read_text())
        texts.add(str(workspace.read_text({"path": "/workspace/src/a.txt"})["text"]))
        with suppress(FileNotFoundError):
            texts.add(created.read_text())
    changing.join()
    assert set(versions) == texts


def test_a_file_system_that_cannot_create_in_one_step(workspace: Workspace, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without renameat2 a file is created too, and an existing one is not replaced."""
    monkeypatch.setattr(jail, "_LIBC", None)
    path = "/workspace/src/b.txt"
    workspace.write_text({"path": path, "text": "x", "mode": "create"})
    assert errors.CONFLICT == code_of(workspace.write_text, path=path, text="y", mode="create")
    assert ("x", ["a.txt", "b.txt"]) == ((directory / "src/b.txt").read_text(), sorted(os.listdir(directory / "src")))


def test_a_patch_cannot_take_all_memory(directory: Path) -> None:
    """A patch whose result would be too large is refused before the result exists, and a result of the largest size is written."""
    workspace = Workspace(directory)
    content = "a" * (FILE_BYTES_MAX // 2)
    (directory / "many.txt").write_text(content)
    patch = {"path": "/workspace/many.txt", "find": "a", "all": True}
    # The text would have four terabytes.
    assert errors.QUOTA == code_of(workspace.patch_text, **patch, replace="b" * 1024 * 1024)
    assert content == (directory / "many.txt").read_text()
    assert len(content) == workspace.patch_text({**patch, "replace": "bb"})["replacements"]
    assert "bb" * len(content) == (directory / "many.txt").read_text()
    asyncio.run(workspace.close())


def test_a_patch_keeps_the_rights_of_the_file(workspace: Workspace, directory: Path) -> None:
    """A file that is executable stays so."""
    (directory / "src/a.txt").chmod(0o750)
    workspace.patch_text({"path": "/workspace/src/a.txt", "find": "one", "replace": "1"})
    assert 0o750 == (directory / "src/a.txt").stat().st_mode & 0o777


def test_no_path_leads_out(workspace: Workspace, directory: Path) -> None:
    """Of ten thousand paths made of `..`, links, hard links, FIFOs, sockets, /proc, absolute and odd names, none reads or changes a file
    outside, and each is refused with a code.
    """
    outside = directory.parent / "outside"
    (directory / "link").symlink_to(outside)
    (directory / "src/link").symlink_to(outside / "secret")
    (directory / "loop").symlink_to(directory / "loop")
    (directory / "up").symlink_to("..")
    (directory / "absolute").symlink_to("/")
    os.link(outside / "secret", directory / "hard")
    os.mkfifo(directory / "fifo")
    os.mknod(directory / "socket", stat.S_IFSOCK | 0o600)
    before = {path: path.read_bytes() for path in outside.iterdir()}
    randomness = random.Random(1)
    parts = ["..", ".", "", "link", "src", "up", "absolute", "loop", "hard", "fifo", "socket", "secret", "outside", "src/link", "src/a.txt"]
    parts += [
        "proc/self/cwd",
        "proc/self/root",
        "dev/fd/0",
        "SRC",
        "\u2024\u2024",
        "\uff0e\uff0e",
        "%2e%2e",
        "..\\",
        "~",
        "a" * 256,
        "n\0",
        "\ud800",
    ]
    roots = ["/workspace/", "/workspace", "/workspace/../", "/", "", "//workspace/", "/Workspace/", str(outside) + "/", "/proc/self/root/"]
    for _ in range(ESCAPES):
        names = [randomness.choice(parts) for _ in range(randomness.randint(1, 4))]
        path = randomness.choice(roots[:1] * 8 + roots) + "/".join([*names, *randomness.choice([[], ["secret"]])])
        choices: list[tuple[Callable[[dict[str, Any]], object], dict[str, Any]]] = [
            (workspace.read_text, {}),
            (workspace.write_text, {"text": "changed"}),
            (workspace.write_text, {"text": "changed", "mode": "append"}),
            (workspace.write_text, {"text": "changed", "mode": "create"}),
            (workspace.patch_text, {"old": "content", "new": "changed"}),
            (workspace.patch_text, {"find": "content", "replace": "changed", "all": True}),
        ]
        call, arguments = randomness.choice(choices)
        answer, code = _answer(call, {"path": path, **arguments})
        assert code in ("", errors.PATH, errors.PERMISSION, errors.CONFLICT), (path, answer)
        assert OUTSIDE not in answer
        if not code:  # it is a file of the workspace itself
            real = Path(os.path.realpath(directory / path.removeprefix("/workspace/")))
            assert real.is_relative_to(directory), path
    assert before == {path: path.read_bytes() for path in outside.iterdir()}


def test_directories_of_commands_stay_inside(directory: Path) -> None:
    """10,000 generated paths for the directory of a command open a directory of the workspace, or none."""
    outside = directory.parent / "outside"
    (directory / "link").symlink_to(outside)
    (directory / "up").symlink_to("..")
    (directory / "absolute").symlink_to("/")
    (directory / "src/inner").mkdir()
    os.mkfifo(directory / "fifo")
    randomness = random.Random(2)
    parts = ["..", ".", "", "link", "src", "inner", "up", "absolute", "fifo", "outside", "a.txt", "src/inner", "proc/self/cwd"]
    parts += ["\uff0e\uff0e", "n\0"]
    roots = ["/workspace/"] * 8 + ["/workspace", "/", "", "//workspace/", f"{outside}/", "/proc/self/cwd/"]
    opened_jail = Jail(directory)
    opened: set[str] = set()
    codes: set[str] = set()
    for _ in range(ESCAPES):
        path = randomness.choice(roots) + "/".join(randomness.choices(parts, k=randomness.randint(0, 3)))
        try:
            with opened_jail.directory(path) as descriptor:
                opened.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        except ToolError as error:
            codes.add(error.code)
    opened_jail.close()
    assert {errors.PATH} == codes
    assert {str(directory), str(directory / "src"), str(directory / "src/inner")} == opened


def test_a_directory_that_becomes_a_link_leads_nowhere(workspace: Workspace, directory: Path) -> None:
    """While a directory and a link to the outside change places, nothing outside is read or changed."""
    outside = directory.parent / "outside"
    (outside / "a.txt").write_text(OUTSIDE)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            (directory / "src").rename(directory / "was")
            (directory / "src").symlink_to(outside)
            (directory / "src").unlink()
            (directory / "was").rename(directory / "src")

    swapping = threading.Thread(target=swap)
    swapping.start()
    calls: list[tuple[Callable[[dict[str, Any]], object], dict[str, Any]]] = [
        (workspace.read_text, {}),
        (workspace.write_text, {"text": "my content"}),
        (workspace.patch_text, {"old": "content", "new": "text"}),
        (workspace.patch_text, {"find": "o", "replace": "e", "all": True}),
    ]
    try:
        for _ in range(RACES):
            for call, arguments in calls:
                answer, code = _answer(call, {"path": "/workspace/src/a.txt", **arguments})
                assert code in ("", errors.PATH, errors.PERMISSION, errors.CONFLICT), answer
                assert OUTSIDE not in answer
    finally:
        over.set()
        swapping.join()
    assert [OUTSIDE, OUTSIDE] == [path.read_text() for path in sorted(outside.iterdir())]


def _answer(call: Callable[[dict[str, Any]], object], arguments: dict[str, Any]) -> tuple[str, str]:
    """Return the answer of a call, or its error, as text; and the code of the error, or ""."""
    try:
        return str(call(arguments)), ""
    except ToolError as error:
        return str(error), error.code


def _part(answer: dict[str, object]) -> tuple[object, object]:
    return answer["text"], answer["truncated"]


@pytest.mark.parametrize(
    "path", [".git/config", ".git", ".GIT/config", ".git. /config", "git~1/config", ".g\u200dit/config", ".git::$DATA"]
)
def test_git_runs_nothing_for_an_agent(workspace: Workspace, directory: Path, path: str) -> None:
    """The files that name the programs of Git cannot be written or patched, and can be read."""
    for name in (".git", ".GIT"):
        (directory / name).mkdir()
        (directory / name / "config").write_text("[core]")
    at, config = f"/workspace/{path}", "/workspace/.git/config"

    assert errors.PERMISSION == code_of(workspace.write_text, path=at, text="[core]\n\tfsmonitor = touch /tmp/out")
    assert errors.PERMISSION == code_of(workspace.patch_text, path=config, old="[core]", new="[x]")
    assert "[core]" == workspace.read_text({"path": config})["text"]


@pytest.mark.parametrize("others", [("objects", "refs"), ("refs",), ("commondir",)])
@pytest.mark.parametrize("path", ["config", "hooks/post-index-change", "worktrees/one/new"])
def test_nothing_is_written_into_a_repository(workspace: Workspace, directory: Path, others: tuple[str, ...], path: str) -> None:
    """A directory that git takes for a repository cannot be changed at any depth, whatever its name."""
    fixture = directory / "src/repo.fixture"
    (fixture / "hooks").mkdir(parents=True)
    (fixture / "worktrees/one").mkdir(parents=True)
    (fixture / "HEAD").symlink_to("refs/heads/main")
    for name in others:
        (fixture / name).mkdir()

    assert errors.PERMISSION == code_of(workspace.write_text, path=f"/workspace/src/repo.fixture/{path}", text="x")


@pytest.mark.parametrize("name", ["HEAD", "head", "commondir", "Commondir. ", "config.worktree"])
def test_no_directory_becomes_a_repository(workspace: Workspace, directory: Path, name: str) -> None:
    """Files that make a directory a repository, or configure one, cannot be written; directories may have their names."""
    (directory / "src" / name).mkdir()

    assert errors.PERMISSION == code_of(workspace.write_text, path=f"/workspace/{name}", text="x")
    assert 1 == workspace.write_text({"path": f"/workspace/{name.strip('. ')}\u65e5", "text": "x"})["bytes"]
    assert 1 == workspace.write_text({"path": f"/workspace/src/{name}/a", "text": "x"})["bytes"]

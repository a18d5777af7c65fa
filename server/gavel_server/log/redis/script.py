"""The Lua scripts of the log. Redis keeps their text; a call sends the text only if Redis does not have it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from gavel_server.log.redis.replies import reason
from gavel_server.log.redis.resp import Argument, Command


class Script:
    """The script in a file of `folder`, by default this one."""

    def __init__(self, file_name: str, folder: Path = Path(__file__).parent) -> None:
        self._text: Final = (folder / file_name).read_text(encoding="utf-8")
        self.digest: Final = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    async def run(
        self,
        send: Callable[..., Awaitable[list[Any]]],
        body: tuple[Argument, ...],
        next_commands: tuple[Command, ...] = (),
        extra_ms: int = 0,
    ) -> list[Any]:
        """Run the script, then `next_commands`; return all replies.

        `send` is `Channel.read` or `write`. `body` is the number of keys, the keys and the arguments.
        """
        replies = await send(("EVALSHA", self.digest, *body), *next_commands, extra_ms=extra_ms)
        if replies and isinstance(replies[0], Exception) and reason(replies[0]).startswith("NOSCRIPT"):
            replies = await send(("EVAL", self._text, *body), *next_commands, extra_ms=extra_ms)
        return replies

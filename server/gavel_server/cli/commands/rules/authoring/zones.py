"""`gavel rules zones`: prints time zones as rule sets declare them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated

import typer

from gavel_server.cli.errors import InvalidInputError
from gavel_server.cli.options import Debug

# Offsets change at most twice in this time, never twice in a week.
_STEP = timedelta(days=7)


def zones(
    names: Annotated[list[str], typer.Argument(metavar="ZONE…", help="Names of time zones, e.g. America/New_York.")],
    since: Annotated[int, typer.Option("--from", min=1970, max=9000, metavar="YEAR", help="The first year.")] = 2025,
    until: Annotated[int, typer.Option("--until", min=1971, max=9001, metavar="YEAR", help="The year at whose beginning it ends.")] = 2045,
    debug: Debug = False,
) -> None:
    """Print time zones as rule sets declare them, to paste under `zones`.

    The offsets come from this machine's time zone files. Once they are in a rule set, they are part of its digest: no server reads a file.
    """
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    from gavel_server.cli.rendering import output

    if until <= since:
        raise InvalidInputError("the zone ends before it begins; give --until a later year than --from")
    lines = ["zones:"]
    keys: set[str] = set()
    for name in dict.fromkeys(names):
        try:
            zone = ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise InvalidInputError(f"this machine knows no time zone {name!r}; write a name such as Europe/Berlin") from error
        lines += [f"  {_key(name, keys)}:", f"    name: {name}", "    offsets:"]
        lines += [f'      - "{line}"' for line in _offsets(zone, since, until)]
        lines.append(f'    until: "{until}-01-01T00:00:00Z"')
    for line in lines:
        output.print_line(line)


def _key(name: str, keys: set[str]) -> str:
    """Return a key by which expressions can name a zone, and add it to the keys in use."""
    plain = re.sub("[^a-z0-9]+", "_", name.rpartition("/")[2].lower())
    first = plain if plain[:1].isalpha() else f"zone_{plain}"
    key, number = first, 1
    while key in keys:
        number += 1
        key = f"{first}_{number}"
    keys.add(key)
    return key


def _offsets(zone: tzinfo, since: int, until: int) -> Iterator[str]:
    """Yield each time at which an offset begins, with the offset. Raises InvalidInputError for an offset with seconds."""
    start, end = datetime(since, 1, 1, tzinfo=UTC), datetime(until, 1, 1, tzinfo=UTC)
    yield f"{_text(start)} {_offset(start, zone)}"
    while start < end:
        after = min(start + _STEP, end)
        if _offset(after, zone) != _offset(start, zone):
            low, high = start, after
            while high - low > timedelta(minutes=1):
                middle = low + timedelta(minutes=(high - low) // timedelta(minutes=2))
                low, high = (middle, high) if _offset(middle, zone) == _offset(start, zone) else (low, middle)
            if high < end:
                yield f"{_text(high)} {_offset(high, zone)}"
        start = after


def _offset(time: datetime, zone: tzinfo) -> str:
    text = time.astimezone(zone).strftime("%z")
    if len(text) > len("+0000"):
        shown = f"{text[:3]}:{text[3:5]}:{text[5:]}"
        raise InvalidInputError(
            f"{zone} has the offset {shown} at {_text(time)}, and no rule set can declare seconds; give --from a later year"
        )
    return f"{text[:3]}:{text[3:5]}"


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")

"""The profile of a runtime of tools, as commands read and open it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gavel_server.cli.errors import CommandError, InvalidInputError

if TYPE_CHECKING:
    from gavel_client import GavelClient
    from gavel_client.tools import ToolRuntime
    from gavel_client.tools.profile import ToolProfile


def read_profile(name: str) -> ToolProfile:
    """Return the profile in a file. Raises InvalidInputError."""
    from gavel_client.tools.profile import ToolProfileError, load_profile

    try:
        return load_profile(name)
    except ToolProfileError as error:
        raise InvalidInputError(str(error)) from error
    except OSError as error:
        raise InvalidInputError(f"cannot read the profile {name}: {error.strerror}") from error


def open_runtime(profile: ToolProfile, client: GavelClient) -> ToolRuntime:
    """Return the runtime of a profile. Raises CommandError if a provider or the evidence store cannot be used."""
    from gavel_client.tools.profile import ToolProfileError

    try:
        return profile.open_runtime(client)
    except (ToolProfileError, ImportError, ValueError) as error:
        raise CommandError(str(error)) from error

"""Users of this machine who call over a Unix socket: the kernel tells their user id."""

from __future__ import annotations

import pwd
from collections.abc import Mapping
from typing import Final

from gavel_rules.identity.principal import Principal

from gavel_server.identity.names import name_problem
from gavel_server.identity.sessions import Session

USER_PREFIX: Final = "uid:"


class UserAuthenticator:
    """Makes sessions of user ids."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names` are names of principals by user id or login name. Raises ValueError."""
        self._names: Final = {_user_id(user): name for user, name in names.items()}
        for user, name in names.items():
            problem = name_problem(name)
            if problem:
                raise ValueError(f"unix_users: the name of {user} {problem}")

    def session(self, user_id: int) -> Session:
        """Return the session of a user."""
        user = f"{USER_PREFIX}{user_id}"
        return Session(Principal(self._names.get(user_id, user), "unix", credential_id=user))


def _user_id(user: str) -> int:
    if user.isdecimal():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise ValueError(f"unix_users: {user} is neither a user id nor a login name of this machine") from None

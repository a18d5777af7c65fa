"""Limits gRPC's own log in this process to errors. It must be imported before anything else loads gRPC.

gRPC writes a line to stderr for each connection that a server ends, also between tests, when pytest captures nothing. It reads its variable
when it is loaded. The variable is removed then, because programs that tests start choose their own verbosity.
"""

from __future__ import annotations

import os
from typing import Final

_VARIABLE: Final = "GRPC_VERBOSITY"

if _VARIABLE not in os.environ:
    os.environ[_VARIABLE] = "ERROR"
    import grpc  # noqa: F401

    del os.environ[_VARIABLE]

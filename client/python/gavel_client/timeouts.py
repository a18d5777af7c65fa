"""asyncio.timeout, which Python 3.10 lacks: there, the package async-timeout provides it.

It raises asyncio.TimeoutError, the one name that means the same on every version: the built-in TimeoutError is another class on 3.10.
"""

import sys

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout

__all__ = ["timeout"]

"""The users of a Redis that holds logs, as rules of its access control lists (Redis 6.2 or Valkey).

Only the server's user can write to logs and heads. Redis cannot allow a key for a command of a script alone, so the others get no scripts.
"""

from __future__ import annotations

from typing import Final

# In a cluster every user has to find the masters.
_CONNECTION: Final = "+@connection +cluster|slots"
_READ_COMMANDS: Final = "+xrange +xread +xlen +xinfo +hget +hmget +hexists +hlen +exists +type +time +info +config|get"

USERS: Final = {
    "gavel-server": (
        # The category of connections comes after what it may not lose: it has WAITAOF, whose name older versions refuse.
        f"~gavel:* -@all +@read +@write +@scripting +@transaction -@dangerous -@blocking {_CONNECTION} "
        "+xread +xreadgroup +xinfo +time +wait +info +config|get"
    ),
    # Offline reads, `gavel replay --redis`. The script reads pages of a log (read.lua); a script can do no more than its user.
    "gavel-reader": f"~gavel:* -@all {_CONNECTION} {_READ_COMMANDS} +eval +evalsha",
    # Consumers of work that read Redis themselves. XADD is not among the commands, and the keys are those of queues.
    "gavel-work": (
        f"~gavel:*:work:* -@all {_CONNECTION} +xreadgroup +xack +xclaim +xautoclaim +xpending +xrange +xdel +xtrim "
        "+xgroup|create +xgroup|delconsumer"
    ),
}

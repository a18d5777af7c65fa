"""The limits of both transports, each with its unit in its name. docs/operating.md lists them with their effect on callers.

The contract's own limits, which are the same on every server, are in `gavel_rules.limits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gavel_rules.limits import BATCH_BYTES_MAX, BATCH_ITEMS_MAX, MESSAGE_BYTES_MAX

# One message. Above the limits of the methods: those name the limit in a violation, and the transport does not.
RECEIVE_BYTES_MAX: Final = 16 * 1024 * 1024
SEND_BYTES_MAX: Final = 64 * 1024 * 1024

# Connections of callers: in all, and from one address (all Unix sockets count as one). At either limit, the connection that has been
# without calls for longest is closed for a newcomer.
CONNECTIONS_MAX: Final = 1024
CALLER_CONNECTIONS_MAX: Final = 512
# Calls under way on one connection. gRPC's clients keep back further ones by themselves.
CONNECTION_CALLS_MAX: Final = 256
# Requests, from the first byte of an unfinished one on, and answers that are not sent: of one connection, and of all.
CONNECTION_BYTES_MAX: Final = 32 * 1024 * 1024
BYTES_IN_FLIGHT_MAX: Final = 96 * 1024 * 1024
# Headers of a call, as HTTP/2 counts them. A caller that sends HEADER_LIST_BYTES_MAX loses its connection.
HEADER_BYTES_MAX: Final = 16 * 1024
HEADER_LIST_BYTES_MAX: Final = 64 * 1024
DECOMPRESSIONS_MAX: Final = 4
# Calls of other methods than those of the link that the server works on at once, and large requests on the link. Others wait in the
# front and take turns. Few, since a call waits for each call that has reached the server before it; more bring no more throughput.
FORWARDED_CALLS_MAX: Final = 8
LARGE_REQUESTS_MAX: Final = 8
LARGE_REQUEST_BYTES: Final = 64 * 1024
# Credentials that the front asks the server about at once; the server verifies one signature after the other.
AUTHENTICATIONS_MAX: Final = 8
# Calls of one connection that are reset, in RESET_SECONDS. A client that cancels all its calls at once stays far below.
RESETS_MAX: Final = 1000
RESET_SECONDS: Final = 10
# A connection without calls is closed.
IDLE_SECONDS_MAX: Final = 300
# From a call's headers, or the first byte of a stream's next message, until the message is there; also for the handshake of a connection.
REQUEST_SECONDS_MAX: Final = 20
# How long a caller may read too little of its answers (server/front/call.go says how little). Without the front: how long it may take to
# read one answer.
STALL_SECONDS_MAX: Final = 10
# How often a caller may ping, also while no call is under way. Subscribers behind a load balancer have to. The limit of gRPC, 5 minutes,
# is longer than a load balancer keeps a silent connection.
PING_SECONDS_MIN: Final = 10
# After this time without data the server pings a caller, and closes the connection if no answer comes.
KEEPALIVE_SECONDS: Final = 60
KEEPALIVE_TIMEOUT_SECONDS: Final = 20
# Near this, the native front collects garbage all the time. It needs BYTES_IN_FLIGHT_MAX, and some for connections and buffers.
FRONT_MEMORY_BYTES: Final = 200 * 1024 * 1024

# A request that only reads or names things.
READ_BYTES_MAX: Final = 64 * 1024
# The fields of a request beside its envelope or document: bus, request_id and the like.
_OTHER_FIELDS_BYTES_MAX: Final = 1024
# Fields of a request's messages, and items of its lists, as sent. Each takes two bytes or more on the wire, and up to 200 bytes in memory.
REQUEST_FIELDS_MAX: Final = 32_768
BATCH_FIELDS_MAX: Final = 262_144
# The decisions in the answer to a batch. The items beyond are answered with an error.
BATCH_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
# Requests up to this size are decoded without counting: they are cheap whatever they hold.
UNCOUNTED_BYTES_MAX: Final = 16 * 1024


class RequestLimit(NamedTuple):
    """The limits of a method's request, which hold before it is decoded. `items_max` limits the field `envelopes`; 0: it has none."""

    bytes_max: int = READ_BYTES_MAX
    fields_max: int = REQUEST_FIELDS_MAX
    items_max: int = 0


_ENVELOPE: Final = RequestLimit(MESSAGE_BYTES_MAX + _OTHER_FIELDS_BYTES_MAX)
_DOCUMENT: Final = RequestLimit(MESSAGE_BYTES_MAX + _OTHER_FIELDS_BYTES_MAX)
_BATCH: Final = RequestLimit(BATCH_BYTES_MAX, BATCH_FIELDS_MAX, BATCH_ITEMS_MAX)
_READ: Final = RequestLimit()

# By method. A method that is not listed takes a request of READ_BYTES_MAX.
_REQUEST_LIMITS: Final[Mapping[str, RequestLimit]] = {
    "gavel.v1.ArbitrationService/SubmitProposal": RequestLimit(MESSAGE_BYTES_MAX),
    "gavel.v1.ArbitrationService/BatchSubmitProposals": _BATCH,
    "gavel.v1.ArbitrationService/StreamProposals": _ENVELOPE,
    # A proposal, and a rule set to decide it by.
    "gavel.v1.ArbitrationService/Preflight": RequestLimit(2 * MESSAGE_BYTES_MAX),
    "gavel.v1.ArbitrationService/BatchPreflight": _BATCH,
    # The reason may have TEXT_BYTES_MAX bytes, as in AcceptClock.
    "gavel.v1.ArbitrationService/ResolveReview": RequestLimit(MESSAGE_BYTES_MAX),
    "gavel.v1.ArbitrationService/RevokeDecision": RequestLimit(MESSAGE_BYTES_MAX),
    "gavel.v1.EventService/AcceptClock": RequestLimit(MESSAGE_BYTES_MAX),
    "gavel.v1.EventService/AcceptLoss": RequestLimit(MESSAGE_BYTES_MAX),
    "gavel.v1.AdministrationService/UpgradeBus": RequestLimit(MESSAGE_BYTES_MAX),
    "gavel.v1.RuleSetService/ActivateRuleSet": RequestLimit(MESSAGE_BYTES_MAX),
    "gavel.v1.RuleSetService/DeactivateRuleSet": RequestLimit(MESSAGE_BYTES_MAX),
    "gavel.v1.AdministrationService/ValidateGrants": _DOCUMENT,
    "gavel.v1.AdministrationService/DeployGrants": _DOCUMENT,
    "gavel.v1.EventService/PublishEvent": _ENVELOPE,
    "gavel.v1.EventService/BatchPublishEvents": _BATCH,
    "gavel.v1.ExecutionService/ReportExecution": _ENVELOPE,
    "gavel.v1.RuleSetService/ValidateRuleSet": _DOCUMENT,
    "gavel.v1.RuleSetService/DeployRuleSet": _DOCUMENT,
    "gavel.v1.RuleSetService/SimulateRuleSet": _DOCUMENT,
}


def request_limit(method: str) -> RequestLimit:
    """Return the limits of a method's request; `method` is "gavel.v1.EventService/GetEvent" or the like."""
    return _REQUEST_LIMITS.get(method, _READ)

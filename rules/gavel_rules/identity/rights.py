"""The rights that grants give, and the RPCs that each of them opens: the one table of who may call what.

A right opens its RPCs on a bus. The event that a call records is checked once more: `access` has the rights of events. Every RPC of the
contract is in this table, or among those that need no right; a test walks the contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

Right = Literal[
    "propose",
    "preflight",
    "publish",
    "execute",
    "review",
    "revoke",
    "read",
    "subscribe",
    "deploy",
    "activate",
    "simulate",
    "replay",
    "prove",
    "tools",
    "grant",
    "operate",
]
RIGHTS: Final[tuple[Right, ...]] = get_args(Right)

RPCS_OF_RIGHT: Final[Mapping[Right, tuple[str, ...]]] = {
    "propose": (
        "gavel.v1.ArbitrationService/SubmitProposal",
        "gavel.v1.ArbitrationService/BatchSubmitProposals",
        "gavel.v1.ArbitrationService/StreamProposals",
    ),
    "preflight": ("gavel.v1.ArbitrationService/Preflight", "gavel.v1.ArbitrationService/BatchPreflight"),
    "publish": ("gavel.v1.EventService/PublishEvent", "gavel.v1.EventService/BatchPublishEvents"),
    "execute": (
        "gavel.v1.ExecutionService/BeginExecution",
        "gavel.v1.ExecutionService/RenewExecution",
        "gavel.v1.ExecutionService/ReportExecution",
        "gavel.v1.WorkService/Consume",
    ),
    "review": ("gavel.v1.ArbitrationService/ResolveReview",),
    "revoke": ("gavel.v1.ArbitrationService/RevokeDecision",),
    "read": (
        "gavel.v1.ArbitrationService/WaitDecision",
        "gavel.v1.EventService/GetEvent",
        "gavel.v1.EventService/ListEvents",
        "gavel.v1.EventService/GetTrace",
        "gavel.v1.ProjectionService/GetProjection",
        "gavel.v1.ProjectionService/ListPendingDecisions",
        "gavel.v1.ProjectionService/ListPendingReviews",
        "gavel.v1.ProjectionService/GetStatus",
        "gavel.v1.RuleSetService/GetRuleSet",
        "gavel.v1.RuleSetService/ListRuleSets",
        "gavel.v1.AdministrationService/GetGrants",
        "gavel.v1.AdministrationService/ListGrants",
        "gavel.v1.ToolService/ResolveTool",
        "gavel.v1.ToolService/ListContracts",
        "gavel.v1.ToolService/ListProviders",
        "gavel.v1.ToolService/ListBindings",
        # Also needs `replay` to make decisions again.
        "gavel.v1.AuditService/AuditTrace",
        "gavel.v1.AuditService/AuditDecision",
    ),
    "subscribe": ("gavel.v1.EventService/SubscribeEvents",),
    "deploy": ("gavel.v1.RuleSetService/ValidateRuleSet", "gavel.v1.RuleSetService/DeployRuleSet"),
    "activate": ("gavel.v1.RuleSetService/ActivateRuleSet", "gavel.v1.RuleSetService/DeactivateRuleSet"),
    "simulate": ("gavel.v1.RuleSetService/SimulateRuleSet",),
    "replay": ("gavel.v1.ReplayService/VerifyReplay",),
    "prove": (
        "gavel.v1.ProofService/GetCheckpoint",
        "gavel.v1.ProofService/GetInclusionProof",
        "gavel.v1.ProofService/GetConsistencyProof",
    ),
    "tools": (
        "gavel.v1.ToolService/RegisterContract",
        "gavel.v1.ToolService/RegisterProvider",
        "gavel.v1.ToolService/BindTool",
        "gavel.v1.ToolService/UnbindTool",
    ),
    "grant": ("gavel.v1.AdministrationService/ValidateGrants", "gavel.v1.AdministrationService/DeployGrants"),
    "operate": (
        "gavel.v1.AdministrationService/CreateBus",
        "gavel.v1.AdministrationService/UpgradeBus",
        "gavel.v1.EventService/AcceptClock",
        "gavel.v1.EventService/AcceptLoss",
        "gavel.v1.ProofService/PublishCheckpoint",
        "gavel.v1.WorkService/ListParked",
        "gavel.v1.WorkService/RetryParked",
        "gavel.v1.WorkService/DiscardParked",
        "gavel.v1.WorkService/ListConsumers",
    ),
}

# Open to every caller that the server lets in. ListBuses shows only buses that the caller may read.
RPCS_WITHOUT_RIGHT: Final = frozenset(
    {
        "gavel.v1.AdministrationService/WhoAmI",
        "gavel.v1.AdministrationService/ListBuses",
        "grpc.health.v1.Health/Check",
        "grpc.health.v1.Health/List",
        "grpc.health.v1.Health/Watch",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    }
)

RIGHT_OF_RPC: Final[Mapping[str, Right]] = {rpc: right for right, rpcs in RPCS_OF_RIGHT.items() for rpc in rpcs}

# RPCs that write, to the log or to a queue of work: their refusals are recorded.
WRITING_RPCS: Final = RIGHT_OF_RPC.keys() - {
    *(rpc for right in ("preflight", "read", "subscribe", "simulate", "replay", "prove") for rpc in RPCS_OF_RIGHT[right]),
    "gavel.v1.RuleSetService/ValidateRuleSet",
    "gavel.v1.AdministrationService/ValidateGrants",
    "gavel.v1.WorkService/ListParked",
    "gavel.v1.WorkService/ListConsumers",
}
# Rights under which a caller names the producer of an event.
PRODUCING_RIGHTS: Final = frozenset({"propose", "preflight", "publish", "execute"})

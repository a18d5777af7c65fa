"""The agent's side: the proposal loop, providers of evidence, and triggers."""

from gavel_client.agents.fact_waits import wait_for_facts
from gavel_client.agents.loop_results import LoopResult, StopReason
from gavel_client.agents.proposal_loop import ProposalLoop, SyncProposalLoop
from gavel_client.agents.providers import FactNeed, FactProviders, ToolReading
from gavel_client.agents.trigger_file import load_triggers
from gavel_client.agents.trigger_subscription import PositionFile, TriggerPositions, TriggerSubscription
from gavel_client.agents.triggers import Firing, Trigger

__all__ = [
    "FactNeed",
    "FactProviders",
    "Firing",
    "LoopResult",
    "PositionFile",
    "ProposalLoop",
    "StopReason",
    "SyncProposalLoop",
    "ToolReading",
    "Trigger",
    "TriggerPositions",
    "TriggerSubscription",
    "load_triggers",
    "wait_for_facts",
]

"""`gavel rules shadow` of a shadow with many differences."""

from __future__ import annotations

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.rule_set_service_pb2 import RuleSet
from gavel_server.cli.commands.rules.deployment.shadow import _print_differences


def test_more_differences_than_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A list of the latest differences names the command that prints all."""
    rule_set = RuleSet(policy_id="parcels", version=2, activated_at_sequence_number=8, shadow_differences=300, shadow_decisions=400)
    _print_differences(rule_set, [Envelope(sequence_number=900)], as_json=False)
    assert (
        "gavel: these are the latest 1 of 300; print them all, among other diagnostics, with gavel log list --category agent-diagnostic "
        "--from 8 --limit 300\n" == capsys.readouterr().err
    )

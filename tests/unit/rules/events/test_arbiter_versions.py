"""The table of arbiter versions."""

from __future__ import annotations

from gavel.v1 import common_pb2
from gavel_rules.events.arbiter_versions import ARBITER_VERSION, LATEST, SEMANTICS, implemented_versions, is_implemented, semantics_of


def test_every_version_names_its_producers() -> None:
    """The producers that Gavel records have the arbiter version as their version."""
    for number, semantics in SEMANTICS.items():
        assert (number, str(number), str(number)) == (semantics.arbiter_version, semantics.arbitrator.version, semantics.system.version)
        assert semantics.arbitrator.SerializeToString() == semantics.arbitrator_fragment
        assert semantics.system.SerializeToString() == semantics.system_fragment


def test_new_buses_have_the_highest_version() -> None:
    """ARBITER_VERSION is the highest version that is implemented."""
    assert (max(SEMANTICS), LATEST) == (ARBITER_VERSION, semantics_of(ARBITER_VERSION))


def test_unknown_versions_are_read_as_the_latest() -> None:
    """A bus of a version that is not implemented can only be read; its events are applied as those of the latest version."""
    assert (False, LATEST) == (is_implemented(ARBITER_VERSION + 1), semantics_of(ARBITER_VERSION + 1))


def test_implemented_versions() -> None:
    """Messages name all implemented versions."""
    assert "2 and 3" == implemented_versions()


def test_refusals_are_shared_up_to_version_2() -> None:
    """In version 2 all producers of a trace share one history of refusals; from version 3 on, each has its own."""
    agent, system = common_pb2.PRODUCER_TYPE_AGENT, common_pb2.PRODUCER_TYPE_SYSTEM
    keys = {
        number: {semantics.refusals_key(kind, name) for kind in (agent, system) for name in "ab"} for number, semantics in SEMANTICS.items()
    }
    assert (1, 4) == (len(keys[2]), len(keys[3]))

"""The program `gavel` of a build that knows arbiter version 2 alone, as builds before version 3 did: this build without version 3."""

from __future__ import annotations

from collections.abc import MutableMapping

from gavel_rules.events import arbiter_versions

if __name__ == "__main__":
    assert isinstance(arbiter_versions.SEMANTICS, MutableMapping)
    del arbiter_versions.SEMANTICS[3]

    from gavel_server.cli.main import main

    main()

"""Gavel's imperative shell: gRPC, Redis, clocks and processes around the functional core in `gavel_rules`."""

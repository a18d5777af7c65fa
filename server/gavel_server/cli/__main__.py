"""`python -m gavel_server.cli`: the program `gavel`, run by this interpreter."""

from gavel_server.cli.main import main

main()

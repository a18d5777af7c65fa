"""`python -m gavel_server.cli`: the program `gavel`, by the interpreter that runs this."""

from gavel_server.cli.main import main

main()

"""The command line, `gavel`: one module per command, over the contract that every client uses."""

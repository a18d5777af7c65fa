"""The command line, `gavel`: one module per family of commands, over the same contract that every other client speaks."""

"""One bus in this process: its `sequencer`, what a batch goes through there, and the `replica` that follows the log."""

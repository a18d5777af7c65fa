"""One bus in this process: the sequencer, the steps of its batches, and the replica that follows the log."""

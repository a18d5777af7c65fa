"""One batch: its size, its decision and its append to the log."""

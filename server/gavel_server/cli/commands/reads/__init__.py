"""Commands that read the state or the log, or prove a log."""

"""The principals of callers and their grants, in the form that commands, the log and replays use."""

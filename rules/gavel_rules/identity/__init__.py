"""Who says so: the principals of callers, in the form that rules, grants and the log use."""

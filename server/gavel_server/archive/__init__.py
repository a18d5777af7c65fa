"""The archive of logs: sealed segments in a directory or an object store, the log that reads across the seam, and backups."""

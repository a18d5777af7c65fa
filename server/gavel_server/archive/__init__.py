"""The archive of logs: sealed segments in a directory or an object store, what reads across the seam, backups."""

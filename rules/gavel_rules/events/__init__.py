"""Events: kinds and categories, the permission matrix, ids, timestamps, the hash chain, and recorded events."""

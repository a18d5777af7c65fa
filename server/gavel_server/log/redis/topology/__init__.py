"""The places of logs: the URL, one Redis or the masters of a cluster, and the way to each bus."""

"""Where the logs are: the URL, one Redis or the masters of a cluster, and the way to each bus."""

"""Work over gRPC: streams of consumers, the groups that they share on this server, and the trimming of queues."""

"""Work queues: the port, and its implementations in memory and in Redis."""

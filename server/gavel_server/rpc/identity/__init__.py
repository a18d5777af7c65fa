"""The interceptor's checks of callers: who they are, and whether they have the right that a call needs."""

"""Sample cases of an action, generated from its params schema, its declarations and its rules' conditions."""

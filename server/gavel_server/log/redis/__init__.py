"""The event log in Redis. `gavel_rules.redis_keys` names its keys, because clients read some of them too."""

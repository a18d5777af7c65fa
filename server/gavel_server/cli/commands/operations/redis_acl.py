"""`gavel redis-acl`: the users of a Redis that let nobody but the server append to a log."""

from __future__ import annotations


def redis_acl() -> None:
    """Print the users for the ACL file of a Redis that holds logs: one for the server, and no default user.

    Each line goes into the file that aclfile names in redis.conf. The password is new and is printed once, on standard error; the file has
    its digest. Start the server with it in GAVEL_REDIS, redis://gavel-server:PASSWORD@HOST:6379/0. The other users may read logs offline
    (GAVEL_REDIS of gavel replay), and consume work without the server (GAVEL_WORK_REDIS of gavel executor and gavel fdr). Neither can
    append.
    """
    import hashlib
    import secrets

    from gavel_server.cli.rendering import output
    from gavel_server.log.redis.access import USERS

    output.print_line("user default off resetpass resetkeys resetchannels -@all")
    for name, rules in USERS.items():
        password = secrets.token_urlsafe(32)
        digest = hashlib.sha256(password.encode()).hexdigest()
        output.print_line(f"user {name} on #{digest} resetchannels {rules}")
        output.print_note(f"password of {name}: {password}")

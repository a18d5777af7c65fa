"""Commands with which people list reviews, decide them, and revoke approvals."""

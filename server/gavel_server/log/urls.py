"""The URLs of stores of logs."""

from __future__ import annotations

import re


def mask_url(url: str) -> str:
    """Return the URL without user and password, for logs and messages."""
    without_user = re.sub(r"://.*@", "://***@", url, flags=re.DOTALL)
    return re.sub(r"([?&][^=&]*(?:password|username|user)=)[^&]*", r"\1***", without_user)

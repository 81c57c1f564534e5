"""What a cloud calls things: the words of messages. Each store has a Cloud of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["read", "list", "write", "delete", "copy"]
"""What is asked of a store, as messages name it."""


@dataclass(frozen=True)
class Cloud:
    """The name of a cloud's store, the permission that each action needs there, and where its
    settings come from.

    `bucket` is its word for a bucket, `address` names the variable that says where the store is,
    `renew` what to do about credentials that have expired or are wrong, `plain` the variable that
    allows http.
    """

    name: str
    bucket: str
    permissions: dict[Action, str]
    address: str
    renew: str
    plain: str

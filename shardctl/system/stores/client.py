"""The client of all stores: obstore, with time-outs that suit requests of some MiB."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from shardctl.errors import UsageError
from shardctl.system.text import printable

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig


Action = Literal["read", "list", "write", "delete", "copy"]
"""What is asked of a store, as messages name it."""


@dataclass(frozen=True)
class Cloud:
    """The name of a cloud's store, the permission that each action needs there, and where its
    settings come from.

    `bucket` is its word for a bucket, `address` names the variable that says where the store is,
    `renew` what to do about credentials that have expired or are wrong. `allow_http` is the
    variable that allows http, `skip_signature` that by which no credentials are used. obstore
    itself takes credentials from the variables `own`.
    """

    name: str
    bucket: str
    permissions: dict[Action, str]
    address: str
    renew: str
    allow_http: str
    skip_signature: str
    own: tuple[str, ...]

    @property
    def has_credentials(self) -> bool:
        """Whether obstore needs no more than the variables of the environment."""
        return any(map(os.environ.get, self.own)) or switched_on(self.skip_signature)


TIMEOUT = "SHARDCTL_STORE_TIMEOUT"
"""Variable: seconds that a store may leave a request without an answer."""

TIMEOUT_SECONDS = 10.0
"""A store that is well answers within 1 s. obstore's own 30 s, ten times, would be minutes of
silence for one lost packet."""

RETRY = "SHARDCTL_STORE_RETRY"
"""Variable: seconds during which a request that fails is made again."""

RETRY_SECONDS = 60.0
"""Long enough for a store that asks to slow down, and for the restart of one; then a person should
know."""

PATIENCE = 6
"""How much longer an upload may take: up to 8 MiB go out before there can be an answer, and then
there is one by the store. A page of a listing took a store 0.6 s that looks at 100,000 keys for it,
and 32 are asked for at a time."""

ANSWER_SECONDS = 3600.0
"""Seconds for the whole of a long answer that goes on arriving: what counts is that it does not
stand still."""

MOST_RETRIES = 20


def client_options(allow_http: bool) -> tuple[ClientConfig, ClientConfig, RetryConfig]:
    """Return how long to wait, from the environment: the client of most requests, that of what
    takes a store longer (uploads, listings, copies), and what both do about a failure. Raises
    UsageError for a value that is no number of seconds."""
    timeout, retry = (
        _seconds(TIMEOUT, TIMEOUT_SECONDS, least=0.1),
        _seconds(RETRY, RETRY_SECONDS, least=0.0),
    )
    connect = timedelta(seconds=min(timeout, 5.0))
    shared: ClientConfig = {
        "allow_http": allow_http,
        "connect_timeout": connect,
        "user_agent": "shardctl",
    }
    quick: ClientConfig = {
        **shared,
        "read_timeout": timedelta(seconds=timeout),
        "timeout": timedelta(seconds=max(timeout, ANSWER_SECONDS)),
    }
    retries: RetryConfig = {
        "max_retries": MOST_RETRIES if retry else 0,
        "retry_timeout": timedelta(seconds=retry),
        "backoff": {
            "init_backoff": timedelta(seconds=0.1),
            "max_backoff": timedelta(seconds=10),
            "base": 2,
        },
    }
    return quick, {**shared, "timeout": timedelta(seconds=timeout * PATIENCE)}, retries


def _seconds(name: str, usual: float, least: float) -> float:
    text = os.environ.get(name, "")
    try:
        seconds = float(text) if text else usual
    except ValueError:
        seconds = math.nan
    if not least <= seconds <= 86400:
        raise UsageError(
            f"{name}={printable(text)} is not a number of seconds from {least:g} to 86400"
        )
    return seconds


def switched_on(name: str) -> bool:
    """Return whether a variable of the environment says yes, in the words that obstore knows."""
    return os.environ.get(name, "").lower() in ("1", "true", "on", "yes", "y")

"""Amazon S3, and stores that speak its protocol: s3://bucket/prefix."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from obstore.store import S3Store

from shardctl.errors import StoreError
from shardctl.system.packages import needed
from shardctl.system.stores.base import Store
from shardctl.system.stores.client import Cloud
from shardctl.system.stores.objects import Clients, Objects

S3 = Cloud(
    "S3",
    "bucket",
    {
        "read": "s3:GetObject",
        "list": "s3:ListBucket",
        "write": "s3:PutObject",
        "delete": "s3:DeleteObject",
        "copy": "s3:GetObject and s3:PutObject",
    },
    "AWS_REGION and AWS_ENDPOINT_URL",
    "sign in again (aws sso login), or set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
    "AWS_SESSION_TOKEN anew",
    "AWS_ALLOW_HTTP",
    "AWS_SKIP_SIGNATURE",
    (
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ),
)

RENEWAL = timedelta(minutes=5)
"""How long obstore may use keys that boto3 gave it. boto3 itself renews them in time, and is quick
to ask."""


def connect(url: str, bucket: str, prefix: str) -> Store:
    """Return the objects below a prefix of a bucket, with the credentials of the environment or of
    a profile."""
    clients = Clients.of(S3Store, bucket, S3, partial(_credentials, url))
    return Objects(url, clients, S3, prefix)


def _credentials(url: str) -> Any:
    """Return what provides credentials where obstore finds none itself: boto3, which knows profiles
    and SSO."""
    provider = needed(
        "obstore.auth.boto3", "s3", f"{url} with no AWS_ACCESS_KEY_ID"
    ).Boto3CredentialProvider
    exceptions = needed("botocore.exceptions", "s3", url)
    try:
        return provider(ttl=RENEWAL)
    except (ValueError, exceptions.BotoCoreError) as error:
        raise StoreError(
            f"{url}: no credentials were found ({error}): set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE;"
            " for a public bucket set AWS_SKIP_SIGNATURE=true"
        ) from error

"""Amazon S3, and stores that speak its protocol: s3://bucket/prefix."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial
from typing import Any

from obstore.store import S3Store

from shardctl.errors import StoreError
from shardctl.system.packages import needed
from shardctl.system.stores.base import Store
from shardctl.system.stores.client import Cloud, switched_on
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
    store = partial(S3Store, **_address(bucket))
    return Objects(url, Clients.of(store, bucket, S3, partial(_credentials, url)), S3, prefix)


def _address(bucket: str) -> dict[str, Any]:
    """Return the address of a bucket where its name is a part of the host, as some stores want it.
    obstore would take the same host for every bucket."""
    scheme, found, host = os.environ.get("AWS_ENDPOINT_URL", "").partition("://")
    by_host = switched_on("AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
    begins = host.startswith(f"{bucket}.")  # as obstore itself wants it
    return {"endpoint": f"{scheme}://{bucket}.{host}"} if found and by_host and not begins else {}


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

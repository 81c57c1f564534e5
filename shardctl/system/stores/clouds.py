"""What the clouds call things: the words of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["read", "list", "write", "delete", "copy"]
"""What is asked of a store, as messages name it."""


@dataclass(frozen=True)
class Cloud:
    """The name of a cloud's store, the permission that each action needs there, and where its settings come from.

    `bucket` is its word for a bucket, `address` names the variable that says where the store is, `renew` what to do about
    credentials that have expired or are wrong, `plain` the variable that allows http.
    """

    name: str
    bucket: str
    permissions: dict[Action, str]
    address: str
    renew: str
    plain: str


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
    "sign in again (aws sso login), or set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN anew",
    "AWS_ALLOW_HTTP=true",
)

GOOGLE = Cloud(
    "Google Cloud Storage",
    "bucket",
    {
        "read": "storage.objects.get",
        "list": "storage.objects.list",
        "write": "storage.objects.create and storage.objects.delete",
        "delete": "storage.objects.delete",
        "copy": "storage.objects.get and storage.objects.create",
    },
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "sign in again (gcloud auth application-default login), or set GOOGLE_APPLICATION_CREDENTIALS anew",
    "GOOGLE_ALLOW_HTTP=true",
)

AZURE = Cloud(
    "Azure Blob Storage",
    "container",
    {
        "read": "Storage Blob Data Reader",
        "list": "Storage Blob Data Reader",
        "write": "Storage Blob Data Contributor",
        "delete": "Storage Blob Data Contributor",
        "copy": "Storage Blob Data Contributor",
    },
    "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ENDPOINT",
    "sign in again (az login), or set AZURE_STORAGE_ACCOUNT_KEY anew",
    "AZURE_ALLOW_HTTP=true",
)

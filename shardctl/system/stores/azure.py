"""Azure Blob Storage: az://container/prefix, of the account that AZURE_STORAGE_ACCOUNT_NAME
names."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from obstore.store import AzureStore

from shardctl.errors import StoreError
from shardctl.system.packages import needed
from shardctl.system.stores.base import Store
from shardctl.system.stores.client import Cloud, switched_on
from shardctl.system.stores.objects import Clients, Objects

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult

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
    "AZURE_ALLOW_HTTP",
    "AZURE_SKIP_SIGNATURE",
    (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_TOKEN",
        "AZURE_STORAGE_CLIENT_SECRET",
    ),
)


class AzureObjects(Objects):
    """Blobs. Their ETags have quotation marks everywhere but in listings."""

    seeks = False  # obstore leaves out what comes before the key to start after

    def _version(self, written: ObjectMeta | PutResult) -> str:
        e_tag = super()._version(written)
        return e_tag if e_tag.startswith('"') else f'"{e_tag}"'


def connect(url: str, bucket: str, prefix: str) -> Store:
    """Return the blobs below a prefix of a container, with the credentials of the environment or of
    az."""
    emulated = switched_on("AZURE_STORAGE_USE_EMULATOR")
    if not emulated and not os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"):
        raise StoreError(f"{url}: the storage account is not known; set AZURE_STORAGE_ACCOUNT_NAME")
    provider = None if emulated else partial(_credentials, url)
    clients = Clients.of(AzureStore, bucket, AZURE, provider, allow_http=emulated)
    return AzureObjects(url, clients, AZURE, prefix)


def _credentials(url: str) -> Any:
    """Return what provides credentials where obstore is given none: azure-identity, which knows all
    kinds of them."""
    return needed("obstore.auth.azure", "azure", url).AzureCredentialProvider()

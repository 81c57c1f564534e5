"""Google Cloud Storage: gs://bucket/prefix."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import PreconditionError
from obstore.store import GCSStore

from shardctl.errors import StoreError
from shardctl.system.packages import needed
from shardctl.system.stores.base import Store
from shardctl.system.stores.client import Cloud
from shardctl.system.stores.objects import Clients, Objects

if TYPE_CHECKING:
    from obstore import PutMode

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
    "sign in again (gcloud auth application-default login), or set GOOGLE_APPLICATION_CREDENTIALS "
    "anew",
    "GOOGLE_ALLOW_HTTP",
    "GOOGLE_SKIP_SIGNATURE",
    ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY"),
)

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


class GoogleObjects(Objects):
    """Objects of Google, whose conditions ask for the generation. Listings do not tell it: it is
    looked up."""

    def _condition(self, key: str, version: str) -> PutMode:
        try:
            meta = obstore.head(self._clients.quick, self._path(key))
        except FileNotFoundError as error:
            raise PreconditionError(str(error)) from error
        if meta["e_tag"] != version:
            raise PreconditionError(f"{key} has the ETag {meta['e_tag']}")
        return {"e_tag": version, "version": meta["version"]}


def connect(url: str, bucket: str, prefix: str) -> Store:
    """Return the objects below a prefix of a bucket, with the credentials of the environment or of
    gcloud."""
    clients = Clients.of(GCSStore, bucket, GOOGLE, partial(_credentials, url))
    return GoogleObjects(url, clients, GOOGLE, prefix)


def _credentials(url: str) -> Any:
    """Return what provides credentials where obstore is given none: google-auth, which knows all
    kinds of them."""
    google = needed("google.auth", "gcs", url)
    provider = needed("obstore.auth.google", "gcs", url).GoogleCredentialProvider
    try:
        found, _ = google.default(scopes=[_SCOPE])
    except google.exceptions.GoogleAuthError as error:
        raise StoreError(
            f"{url}: no credentials were found: sign in (gcloud auth application-default login), "
            "or set"
            " GOOGLE_APPLICATION_CREDENTIALS; for a public bucket set GOOGLE_SKIP_SIGNATURE=true"
        ) from error
    return provider(found)

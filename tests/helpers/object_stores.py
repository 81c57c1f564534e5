"""Object stores for tests: in memory, S3 and Google Cloud Storage by a server of our own, Azure by
Azurite where it is."""

from __future__ import annotations

import base64
import email.utils
import hmac
import itertools
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_server import ObjectServer
from obstore.store import MemoryStore

from shardctl.system.stores.objects import Clients, Objects
from shardctl.system.stores.s3 import S3

ROOT = Path(__file__).parents[2]
AZURITE = (
    Path(os.environ.get("SHARDCTL_INTEROP", ROOT / ".interop"))
    / "azurite"
    / "node_modules"
    / ".bin"
    / "azurite-blob"
)

_NAMES = itertools.count()


def memory_store(prefix: str = "") -> Objects:
    """Return an empty store in memory."""
    inside = MemoryStore()
    return Objects("memory://here", Clients(inside, inside), S3, prefix)


def new_bucket(server: ObjectServer) -> str:
    """Make a bucket that no other test has."""
    return server.make_bucket(f"bucket-{os.getpid()}-{next(_NAMES)}")


@pytest.fixture(scope="session")
def started_server() -> Iterator[ObjectServer]:
    with ObjectServer() as server:
        yield server


@pytest.fixture
def object_server(
    started_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectServer]:
    """The server of S3, with the variables that lead to it, no faults and an empty log. A failure
    is tried again for 2 s."""
    for name in (
        "AWS_PROFILE",
        "AWS_SESSION_TOKEN",
        "AWS_DEFAULT_REGION",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**started_server.environment, "SHARDCTL_STORE_RETRY": "2"}.items():
        monkeypatch.setenv(name, value)
    started_server.clear()
    yield started_server
    started_server.clear()


@pytest.fixture
def bucket(object_server: ObjectServer) -> str:
    """The URL of an empty bucket of S3."""
    return f"s3://{new_bucket(object_server)}"


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables that lead to Azurite."""
    if not AZURITE.exists():
        pytest.skip("Azurite is not installed (make interop)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = [
        "--silent",
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
        "--disableProductStyleUrl",
        "--disableTelemetry",
    ]
    command = [str(AZURITE), *options, "--blobPort", str(port)]
    with subprocess.Popen(
        command, cwd=tmp_path_factory.mktemp("azurite"), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "successfully listens" in line:
                break
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
            "AZURE_STORAGE_ACCOUNT_KEY": (
                "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
            ),
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/devstoreaccount1",
            "AZURE_ALLOW_HTTP": "true",
        }
        process.terminate()


@pytest.fixture
def container(azurite: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty container of Azurite."""
    for name, value in azurite.items():
        monkeypatch.setenv(name, value)
    return f"az://{make_container(f'container-{os.getpid()}-{next(_NAMES)}')}"


def make_container(name: str) -> str:
    """Make a container by a request that is signed by hand: obstore has none for it."""
    account, key = os.environ["AZURE_STORAGE_ACCOUNT_NAME"], os.environ["AZURE_STORAGE_ACCOUNT_KEY"]
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
    said = "".join(f"{field}:{value}\n" for field, value in headers.items())
    text = "PUT" + "\n" * 12 + f"{said}/{account}/{account}/{name}\nrestype:container"
    signature = base64.b64encode(
        hmac.digest(base64.b64decode(key), text.encode(), "sha256")
    ).decode()
    headers["Authorization"] = f"SharedKey {account}:{signature}"
    address = f"{os.environ['AZURE_STORAGE_ENDPOINT']}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(address, method="PUT", headers=headers)).close()
    return name

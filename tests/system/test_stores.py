"""Object stores: the same promises of each, and what is said when one refuses."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from object_server import ObjectServer
from object_stores import memory_store, new_bucket
from programs import run_python

from shardctl.errors import (
    InstallError,
    NoSuchKeyError,
    ObjectChangedError,
    StorageError,
    StoreError,
    UnansweredError,
    UsageError,
    WrongAnswerError,
)
from shardctl.system.locations import is_url
from shardctl.system.packages import install_line
from shardctl.system.store_lease import PROBES, probe
from shardctl.system.stores import client, objects, open_store
from shardctl.system.stores.base import Entry, Store
from shardctl.system.stores.objects import PART

KEYS = ["a", "b c.txt", "d/e+f", "d/g%20h", "d/sub/#1?x=y&z", "z~!'()[]{}^|", "über/日本.jpg"]


@pytest.fixture(params=["memory", "s3", "gs", "az"])
def store(request: pytest.FixtureRequest) -> Store:
    """Each store below a prefix, beside objects that are not below it."""
    if request.param == "memory":
        return memory_store("data/set")
    if request.param == "az":
        place = request.getfixturevalue("container")
    else:
        place = f"{request.param}://{new_bucket(request.getfixturevalue('object_server'))}"
    for key in ("data/set-2/other", "data/set", "data/a"):
        open_store(place).put(key, b"not below the prefix")
    return open_store(f"{place}/data/set")


@pytest.fixture
def s3(bucket: str) -> Store:
    return open_store(bucket)


def listed(store: Store, *arguments: str) -> list[Entry]:
    return [entry for page in store.pages(*arguments) for entry in page]


def test_what_goes_in_comes_out(store):
    for number, key in enumerate(KEYS):
        data = key.encode() * number
        version = store.put(key, data)
        assert store.get(key).to_pybytes() == data
        assert store.stat(key) == Entry(key, len(data), version)
    # a version is the same from everywhere
    assert listed(store) == [store.stat(key) for key in sorted(KEYS)]


def test_a_stretch_is_what_is_there(store):
    data = b"0123456789"
    store.put("k", data)
    for start, length in ((3, 4), (8, 100), (2, 0), (10, 5)):
        assert store.get("k", start, length).to_pybytes() == data[start : start + length]
    assert store.get("k", 4).to_pybytes() == data[4:]


@pytest.mark.thorough(after=12)
@pytest.mark.parametrize("size", [0, 1, 4, 5, 37])
@pytest.mark.parametrize("at_once", [1, 3, 8])
def test_an_object_comes_in_pieces(store, monkeypatch, size, at_once):
    monkeypatch.setattr(objects, "PIECE", 4)
    data = bytes(range(size))
    found = Entry("k", size, store.put("k", data))
    for start in (0, 4, 6):
        pieces = [piece.to_pybytes() for piece in store.pieces(found, start, at_once)]
        assert b"".join(pieces) == data[start:]
        assert [len(piece) for piece in pieces[:-1]] == [4] * (len(pieces) - 1)
    with pytest.raises(WrongAnswerError, match=r"[0-3] bytes in place of [1-4], twice"):
        list(store.pieces(Entry("k", size + 1, "")))


def test_who_takes_no_more_pieces_asks_for_no_more(object_server, s3, monkeypatch):
    monkeypatch.setattr(objects, "PIECE", 4)
    found = Entry("k", 400, s3.put("k", bytes(400)))
    object_server.clear()
    pieces = s3.pieces(found, at_once=3)
    assert next(pieces).size == 4
    pieces.close()  # type: ignore[attr-defined]
    assert len(object_server.log()) <= 3


def test_what_was_fetched_is_told(store):
    for key, data in (("a", b"0123456789"), ("empty", b"")):
        version = store.put(key, data)
        for length in (0, 4, 100):
            found, stored = store.fetch(key, length)
            assert (found.to_pybytes(), stored) == (data[:length], Entry(key, len(data), version))


def test_what_is_not_there(store):
    assert store.stat("none") is None
    for read in (
        store.get,
        lambda key: list(store.pieces(Entry(key, 20 << 20, ""))),
        lambda key: store.fetch(key, 1),
    ):
        with pytest.raises(NoSuchKeyError, match=r"/data/set/none|here/none"):
            read("none")
    assert listed(store) == []
    assert store.children() == ([], [])
    assert store.replace("none", b"1", '"0"') is None
    store.delete(["none", "neither"])


def test_an_object_that_was_written_anew_is_not_read_as_the_old_one(store):
    old = store.put("k", b"0123")
    assert store.get("k", version=old).to_pybytes() == b"0123"
    assert [piece.to_pybytes() for piece in store.pieces(Entry("k", 4, old))] == [b"0123"]
    new = store.put("k", b"4567")
    assert new != old
    for read in (lambda: store.get("k", 1, 2, old), lambda: list(store.pieces(Entry("k", 4, old)))):
        with pytest.raises(ObjectChangedError, match="k: has changed"):
            read()


def test_create_and_replace_have_conditions(store):
    first = store.create("k", b"1")
    assert store.create("k", b"2") is None
    assert store.create("k", b"1") == first, "these bytes are there: an answer may have been lost"
    second = store.replace("k", b"3", first)
    assert second not in (None, first)
    assert store.replace("k", b"4", first) is None
    assert store.get("k").to_pybytes() == b"3"
    store.delete(["k"])
    assert store.replace("k", b"5", second) is None
    assert store.stat("k") is None


def test_of_many_that_create_at_once_one_does(store):
    begin = threading.Barrier(8)

    def create(number: int) -> str | None:
        begin.wait()
        return store.create("k", b"%d" % number)

    with ThreadPoolExecutor(8) as threads:
        versions = list(threads.map(create, range(8)))
    (winner,) = (number for number, version in enumerate(versions) if version is not None)
    assert store.get("k").to_pybytes() == b"%d" % winner


@pytest.mark.thorough
def test_a_large_file_is_sent_in_parts(store, tmp_path):
    data = random.Random(1).randbytes(2 * PART + 1)
    (tmp_path / "shard").write_bytes(data)
    version = store.put("shard", tmp_path / "shard")
    assert store.get("shard", version=version).to_pybytes() == data
    assert store.replace("shard", b"small", version) is not None
    with pytest.raises(StorageError, match="gone: cannot be read"):
        store.put("shard", tmp_path / "gone")
    assert store.get("shard").to_pybytes() == b"small"


def test_listings(store):
    keys = ["a", "a-b/c", "a/b", "a/b-c", "a/b/c", "a/b/d", "ab", "b/c"]
    for key in keys:
        store.put(key, b"1")

    def names(*arguments: str) -> list[str]:
        return [entry.name for entry in listed(store, *arguments)]

    assert names() == keys
    assert names("a/") == keys[2:6]
    assert names("a") == keys[:-1], "a prefix may end within a name"
    assert names("a/", "a/b-c") == keys[4:6]
    assert names("", "a/b/c") == keys[5:]
    for folder, below, there in (
        ("", ["a", "a-b", "b"], ["a", "ab"]),
        ("a", ["b"], ["a/b", "a/b-c"]),
    ):
        folders, objects = store.children(folder)
        assert (folders, [entry.name for entry in objects]) == (below, there)
    store.delete([*keys[1:4], "none", *keys[4:]])
    assert names() == ["a"]


def test_an_object_of_a_probe_that_another_process_deletes_proves_nothing(object_server, bucket):
    # as if the first were gone by the second
    object_server.fault("unconditional", method="PUT", key=f"{PROBES}*", times=2)
    probe(open_store(bucket))


@examples(30)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), min_size=1, max_size=6),
        min_size=1,
        max_size=3,
    )
)
def test_a_key_is_refused_or_kept_as_it_is(parts):
    key, store = "/".join(parts), memory_store("p")
    try:
        store.put(key, b"1")
    except StoreError:
        assert any(part in (".", "..", "") for part in key.split("/"))
    else:
        assert [entry.name for entry in listed(store)] == [key]


@pytest.mark.thorough
def test_pages_are_small_and_in_order(object_server, s3, bucket):
    for number in range(1003):
        put_plainly(object_server, bucket, f"x/{number:04}", b"1")
    pages = list(s3.pages("x/"))
    assert [len(page) for page in pages] == [1000, 3]
    s3.delete(entry.name for page in pages for entry in page)
    assert listed(s3) == []
    assert [request["method"] for request in object_server.log()].count("DELETE") == 2


def put_plainly(server: ObjectServer, bucket: str, key: str, data: bytes) -> None:
    address = f"{server.address}/{bucket.removeprefix('s3://')}/{key}"
    request = urllib.request.Request(
        address, data=data, method="PUT", headers={"Content-Type": "binary/octet-stream"}
    )
    urllib.request.urlopen(request).close()


def test_what_consoles_write_for_a_folder_is_no_object(object_server, bucket):
    for key in ("in/", "in/sub-x", "in/sub/", "in/sub/1", "in/hollow/"):
        put_plainly(object_server, bucket, key, b"" if key.endswith("/") else b"1")
    put_plainly(object_server, bucket, "in/empty", b"")
    store = open_store(f"{bucket}/in")
    assert [entry.name for entry in listed(store)] == ["empty", "sub-x", "sub/1"]
    assert [entry.name for entry in store.children()[1]] == ["empty", "sub-x"]


def test_a_name_that_cannot_be_used_is_told(object_server, bucket, s3):
    put_plainly(object_server, bucket, "in//1", b"1")
    for call in (lambda: listed(open_store(f"{bucket}/in")), lambda: s3.get("in//1")):
        with pytest.raises(StoreError, match="in//1"):
            call()


CALLS: dict[str, Callable[[Store], object]] = {
    "reading": lambda store: store.get("k"),
    "listing": lambda store: listed(store),
    "writing": lambda store: store.put("k", b"2"),
    "deleting": lambda store: store.delete(["k"]),
    "writing if": lambda store: store.create("new", b"2"),
    "reading facts": lambda store: store.stat("k"),
    "listing a folder": lambda store: store.children(),
}


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("action", CALLS)
def test_what_a_store_refuses_is_one_sentence(object_server, bucket, s3, action):
    s3.put("k", b"1")
    for kind, said in (
        ("403", "is not permitted .s3:"),
        ("expired", "failed: the credentials have expired .*sign in again"),
        ("redirect", "failed: .*set AWS_REGION"),
    ):
        object_server.clear()
        object_server.fault(kind)
        with pytest.raises(StoreError, match=f"^{bucket}.*{action.split()[0]} {said}") as caught:
            CALLS[action](s3)
        assert "\n" not in str(caught.value)
    object_server.clear()
    with pytest.raises(StoreError, match=r"s3://no-such-bucket.*: there is no such") as caught:
        CALLS[action](open_store("s3://no-such-bucket"))
    assert not isinstance(caught.value, NoSuchKeyError)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://127.0.0.1:1", "the connection was refused"),
        ("http://no-such-host.invalid", "its host name is not known"),
        ("", "it does not speak TLS there"),
    ],
)
def test_an_address_where_no_store_answers(object_server, monkeypatch, address, message):
    address = address or object_server.address.replace("http:", "https:")
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("SHARDCTL_STORE_RETRY", "0")
    for action in ("reading", "listing", "writing"):
        with pytest.raises(UnansweredError, match=f"no connection to S3, {message}"):
            CALLS[action](open_store("s3://bucket"))


def test_the_name_of_a_bucket_may_be_a_part_of_the_host(object_server, monkeypatch):
    """As OSS and COS want it. A proxy sees the hosts, so that none has to be there."""
    hosts = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hosts.append(urlsplit(self.path).netloc)
            self.send_error(404)

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://oss.invalid")
        monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
        for bucket in ("raw", "data"):
            with pytest.raises(StoreError):
                open_store(f"s3://{bucket}").get("k")
        proxy.shutdown()
    assert hosts == ["raw.oss.invalid", "data.oss.invalid"]


def test_http_is_used_only_where_it_is_allowed(bucket, monkeypatch):
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StoreError, match="http:// is not allowed; set AWS_ALLOW_HTTP=true"):
        open_store(bucket).get("k")


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("action", ["reading", "listing", "writing", "deleting", "reading facts"])
def test_faults_that_pass_are_not_noticed(object_server, s3, action):
    s3.put("k", b"1")
    # a delete is not safe to repeat for the client
    for kind in ("503", "reset") if action != "deleting" else ("503",):
        object_server.fault(kind, times=1)
        CALLS[action](s3)
        s3.put("k", b"1")


@pytest.mark.thorough
def test_an_answer_that_breaks_off_is_read_on(object_server, bucket):
    store, data = open_store(bucket), random.Random(1).randbytes(3 << 20)
    store.put("k", data)
    object_server.fault("cut", size=1 << 20, times=2)
    assert store.get("k").to_pybytes() == data


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("kind", ["cut", "lost", "reset", "503"])
def test_the_end_of_an_upload_whose_answer_is_lost(object_server, bucket, tmp_path, kind):
    store, data = open_store(bucket), random.Random(1).randbytes(PART + 1)
    (tmp_path / "data").write_bytes(data)
    object_server.fault(kind, method="COMPLETE", times=1)
    store.put("k", tmp_path / "data")
    assert store.get("k").to_pybytes() == data


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(("kind", "error"), [("404", NoSuchKeyError), ("412", ObjectChangedError)])
def test_an_object_that_goes_or_changes_after_its_answer_broke_off(
    object_server, s3, bucket, kind, error
):
    version = s3.put("k", b"content")
    object_server.fault("cut", method="GET", size=2, times=1)
    object_server.fault(kind, method="GET")
    with pytest.raises(error, match=f"^{bucket}/k: "):
        s3.get("k", version=version)


def test_a_store_that_stays_out_of_order_is_told(object_server, bucket, monkeypatch):
    monkeypatch.setenv("SHARDCTL_STORE_RETRY", "0")
    s3 = open_store(bucket)
    object_server.fault("503")
    for action, call in CALLS.items():
        with pytest.raises(UnansweredError, match=f"{action.split()[0]} failed: S3 is overloaded"):
            call(s3)


@pytest.mark.thorough
def test_connections_that_break_are_made_again_for_as_long_as_was_asked(
    object_server, bucket, monkeypatch
):
    monkeypatch.setenv(client.RETRY, "3")
    store, began = open_store(bucket), time.monotonic()
    object_server.fault("reset")
    with pytest.raises(UnansweredError, match="the connection to S3 broke, again and again"):
        store.stat("k")
    assert 2 < time.monotonic() - began < 12  # not 3 s again and again


@pytest.mark.thorough
def test_a_store_that_hangs_is_told_in_time(object_server, bucket, monkeypatch):
    monkeypatch.setenv(client.TIMEOUT, "0.2")
    monkeypatch.setenv(client.RETRY, "0")
    s3 = open_store(bucket)
    object_server.fault("slow", seconds=20)
    for action in ("reading", "listing", "writing"):
        with pytest.raises(
            UnansweredError,
            match=f"{action} failed: no answer from S3; .* set {client.TIMEOUT} to more seconds",
        ):
            CALLS[action](s3)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("kind", ["lost", "conflict", "reset"])
def test_a_conditional_write_is_done_whatever_becomes_of_the_answer(object_server, s3, kind):
    object_server.fault(kind, method="PUT", times=1)
    version = s3.create("k", b"mine")
    assert version == s3.stat("k").version
    object_server.fault(kind, method="PUT", times=1)
    assert s3.replace("k", b"mine too", version) == s3.stat("k").version
    assert s3.get("k").to_pybytes() == b"mine too"
    assert s3.create("k", b"another's") is None


@pytest.mark.thorough
def test_an_upload_that_fails_leaves_nothing_to_see(object_server, s3, tmp_path):
    (tmp_path / "shard").write_bytes(bytes(3 * PART))
    for method in ("PART", "COMPLETE"):
        object_server.fault("403", method=method, times=1)
        with pytest.raises(StoreError, match="s3:PutObject"):
            s3.put("shard", tmp_path / "shard")
        assert listed(s3) == []
    # its parts are not left to be paid for
    assert "ABORT" in {request["method"] for request in object_server.log()}


def test_a_store_that_ignores_conditions_is_refused(object_server, s3, bucket):
    object_server.fault("unconditional", key=f"{PROBES}*")
    with pytest.raises(StoreError, match=f"^{bucket}: this store ignores conditions"):
        probe(s3)
    assert listed(s3) == []


def asking(call: str, bucket: str, **environment: str) -> subprocess.Popen[str]:
    """Start a process that does one thing with a store."""
    program = f"from shardctl.system.stores import open_store\nopen_store({bucket!r}).{call}"
    given = {"env": {**os.environ, **environment}, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", program], **given)


@pytest.mark.thorough
@pytest.mark.parametrize("call", ["get('k')", "put('k', b'1')", "children()", "pages().__next__()"])
def test_a_process_that_stood_still_asks_again(object_server, bucket, call):
    """Stopped for longer than requests are made again: when it goes on, the time for all tries is
    over."""
    open_store(bucket).put("k", b"1")
    object_server.clear()
    object_server.fault("slow", times=1, seconds=0.5)
    limits = {client.TIMEOUT: "1", client.RETRY: "1"}
    with asking(call, bucket, **limits) as process:
        while process.poll() is None and not object_server.log():
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        time.sleep(2)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


def test_ctrl_c_ends_a_request_that_hangs(object_server, bucket):
    object_server.fault("slow", key="hangs", seconds=300)
    with asking("get('hangs')", bucket, **{client.TIMEOUT: "200"}) as process:
        while process.poll() is None and "hangs" not in {r["key"] for r in object_server.log()}:
            pass
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=100)
    assert said.endswith("KeyboardInterrupt\n")


FORKS = """
import os, sys, shardctl.system.stores
from shardctl.errors import StoreError
store = shardctl.system.stores.open_store(sys.argv[1])
{before}
if not (child := os.fork()):
    try:
        print(shardctl.system.stores.client_of(sys.argv[1]).stat("k"))
    except StoreError as error:
        print(error)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    ("before", "said"),
    [
        ('store.put("k", b"1")', "was forked from one that had used an object store"),
        ("", "None\n"),
        ("client = shardctl.system.stores.client_of(sys.argv[1])", "None\n"),
    ],
)
def test_a_forked_process_does_not_wait_for_ever(bucket, before, said):
    assert said in run_python(FORKS.format(before=before), bucket, check=True).stdout


def test_which_texts_are_urls():
    assert all(map(is_url, ("s3://bucket/a", "http://host/a")))
    assert not any(map(is_url, ("/s3://a", "out", "s3:/bucket", "C:\\data", Path("s3/b"))))
    with pytest.raises(UsageError, match="a Path drops one / of a URL"):
        is_url(Path("s3://bucket/a"))
    for url, message in (
        ("out", "s3://, gs://, az://"),
        ("ftp://host/a", "s3://, gs://, az://"),
        ("s3://", "names no bucket"),
        ("s3://b/a//c", "has an empty part"),
        ("s3://b/../c", "has an empty part, . or .."),
    ):
        with pytest.raises(UsageError, match=message):
            open_store(url)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    for url, extra in (("s3://b", "s3"), ("gs://b", "gcs"), ("az://b", "azure")):
        with pytest.raises(InstallError, match=re.escape(install_line(extra))):
            open_store(url)


def without_credentials(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")


def test_credentials_that_are_nowhere(monkeypatch, tmp_path):
    without_credentials(monkeypatch, tmp_path)
    for url, message in (
        ("s3://b/c", "no credentials were found .*AWS_PROFILE"),
        ("gs://b/c", "no credentials were found: sign in .gcloud"),
        ("az://b/c", "set AZURE_STORAGE_ACCOUNT_NAME"),
    ):
        with pytest.raises(StoreError, match=f"^{url}: .*{message}"):
            open_store(url)


def test_the_credentials_of_a_profile(object_server, bucket, monkeypatch, tmp_path):
    without_credentials(monkeypatch, tmp_path)
    (tmp_path / ".aws").mkdir()
    keys = "aws_access_key_id = someone\naws_secret_access_key = secret\n"
    (tmp_path / ".aws" / "credentials").write_text(f"[work]\n{keys}")
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_server.address)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    open_store(bucket).put("k", b"1")
    assert any("someone/" in (request["authorization"] or "") for request in object_server.log())
    monkeypatch.setenv("AWS_PROFILE", "none")
    with pytest.raises(StoreError, match=r"no credentials were found .*\(none\)"):
        open_store(bucket)

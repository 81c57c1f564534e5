"""What obstore raises, as sentences that say what was tried, where, and what to do.

obstore knows few classes of faults; the others are told by the status and the code in the store's
answer, which its message contains, and by the names of Rust's errors for what went wrong on the
network.
"""

from __future__ import annotations

import re

from shardctl.errors import (
    BrokenAnswerError,
    NoSuchKeyError,
    NotPermittedError,
    ObjectChangedError,
    StandstillError,
    StoreError,
    UnansweredError,
    WrongAnswerError,
    first_line,
)
from shardctl.system.stores.base import WRONG_ADVICE
from shardctl.system.stores.client import RETRY, TIMEOUT, Action, Cloud
from shardctl.system.text import printable

_STATUS = re.compile(r"status code: (\d{3})")
_ONE_TRY = re.compile(r"\bretries: 0,\s+max_retries: [1-9]")
"""What obstore says of a request that it has made once, in all of the time that it may take."""

_RETRIED = re.compile(r", after \d+ retries,")
"""What obstore says of a request that it has made again for as long as it may."""

_CODE = re.compile(r"<Code>(\w+)</Code>")

_DOING = {
    "read": "reading",
    "list": "listing",
    "write": "writing",
    "delete": "deleting",
    "copy": "copying",
}

_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_WRONG = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "AuthenticationFailed",
    "InvalidAuthenticationInfo",
}
_ELSEWHERE = {
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "TemporaryRedirect",
    "IllegalLocationConstraintException",
}

_SENSELESS = ("NotPartial", "UnexpectedRange", "InvalidListResponse", "header missing")
"""What obstore says of an answer that no store gives."""

_NETWORK = (
    ("dns error", "its host name is not known"),
    ("ConnectionRefused", "the connection was refused"),
    ("ertificate", "its certificate is not trusted"),
    ("InvalidContentType", "it does not speak TLS there"),
    ("NetworkUnreachable", "the network cannot be reached"),
    ("HostUnreachable", "the host cannot be reached"),
)
"""What stands in the message of a connection that was not made, and how to say it."""


def described(error: Exception, cloud: Cloud, action: Action, where: str) -> StoreError:
    """Return the error to raise for one of obstore's: `where` is the URL of what was asked for."""
    text = str(error)
    status, code = _found(_STATUS, text), _found(_CODE, text)
    kind = type(error).__name__
    where = printable(where)
    doing = f"{where}: {_DOING[action]}"
    if code in _NO_BUCKET:
        return StoreError(f"{where}: there is no such {cloud.bucket}; make it, or give another one")
    if code in _EXPIRED:
        return StoreError(f"{doing} failed: the credentials have expired ({code}); {cloud.renew}")
    if code == "RequestTimeTooSkewed":
        return StoreError(f"{doing} failed: the clock of this machine is wrong ({code}); set it")
    if code in _WRONG or status == "401" or kind == "UnauthenticatedError":
        return StoreError(
            f"{doing} failed: the credentials are not valid ({code or status}); {cloud.renew}"
        )
    if code in _ELSEWHERE or status in ("301", "307") or "incorrectly configured region" in text:
        return StoreError(
            f"{doing} failed: the {cloud.bucket} is elsewhere; set {cloud.address} to it"
        )
    if code == "InvalidObjectState":
        return NotPermittedError(
            f"{doing} is not possible while the object is archived ({code}); restore it first"
        )
    if status == "403" or kind == "PermissionDeniedError":
        hidden = (
            "; what is not there looks the same without the permission to list"
            if action == "read"
            else ""
        )
        needed = cloud.permissions[action]
        return NotPermittedError(
            f"{doing} is not permitted ({needed}); ask for this permission, or use other "
            f"credentials{hidden}"
        )
    if action == "write" and (isinstance(error, FileNotFoundError) or status == "404"):
        # The answer to the end of an upload was lost: obstore then aborts it, and is told that
        # there is none.
        return BrokenAnswerError(
            f"{doing} failed: the upload ended too early, again and again; try later"
        )
    # Of a request that is made again after its answer broke off, obstore tells the number alone.
    if isinstance(error, FileNotFoundError) or (action in ("read", "copy") and status == "404"):
        return NoSuchKeyError(f"{where}: there is no such object")
    if kind == "PreconditionError" or (action == "read" and status == "412"):
        return ObjectChangedError(f"{where}: has changed since it was first read; start again")
    if kind == "InvalidPathError":
        return StoreError(
            f"{doing} failed: the name of an object there cannot be used ({_short(error)}); "
            "rename it"
        )
    if any(sign in text for sign in _SENSELESS):
        return WrongAnswerError(f"{doing} failed: {_short(error)}, twice; {WRONG_ADVICE}")
    return _unanswered(text, status, code, cloud, doing) or StoreError(
        f"{doing} failed: {_short(error)}"
    )


def _unanswered(
    text: str, status: str, code: str, cloud: Cloud, doing: str
) -> UnansweredError | None:
    """Return the error for a store that did not answer, or said that it cannot; None if it gave
    another answer."""
    if status.startswith("5") or status in ("408", "429"):
        return UnansweredError(
            f"{doing} failed: {cloud.name} is overloaded or out of order "
            f"({' '.join(filter(None, (status, code)))}), again and again; try later, or set "
            f"{RETRY} to more seconds"
        )
    if "BadScheme" in text:
        return UnansweredError(
            f"{doing} failed: http:// is not allowed; set {cloud.allow_http}=true"
        )
    if "TimedOut" in text or "kind: Timeout" in text:
        kind = StandstillError if _ONE_TRY.search(text) else UnansweredError
        return kind(
            f"{doing} failed: no answer from {cloud.name}; check the network and {cloud.address}, "
            f"or set {TIMEOUT} to more"
            " seconds"
        )
    for sign, said in _NETWORK:
        if sign in text:
            return UnansweredError(
                f"{doing} failed: no connection to {cloud.name}, {said}; check the network and "
                f"{cloud.address}"
            )
    if (
        "error sending request" in text
        or "kind: Body" in text
        or "kind: Decode" in text
        or "kind: Interrupted" in text
    ):
        made_again = "error sending request" in text and _RETRIED.search(text) is not None
        kind = UnansweredError if made_again else BrokenAnswerError
        return kind(
            f"{doing} failed: the connection to {cloud.name} broke, again and again; check the "
            "network"
        )
    return None


def is_past_the_end(error: Exception) -> bool:
    """Return whether a range was asked for that begins after the last byte of the object."""
    text = str(error)
    # the last one is Azurite's, of an empty object
    signs = ("InvalidGetRange", "StartTooLarge", '"bytes 0--1/0"')
    return _found(_STATUS, text) == "416" or any(sign in text for sign in signs)


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


def _short(error: Exception) -> str:
    return printable(first_line(error))

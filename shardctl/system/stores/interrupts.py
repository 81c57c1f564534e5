"""Calls that Ctrl-C ends at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Answer = TypeVar("Answer")


def interruptibly(call: Callable[[], Answer]) -> Answer:
    """Return what `call` returns. Where the main thread makes it, Ctrl-C ends the wait, and not only what comes after it.

    Python hands signals to its main thread, and obstore gives none back to Python while a request is on its way: for a store
    that does not answer, that was a minute. So another thread makes the call (0.1 ms), and is left to itself after Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    future: Future[Answer] = Future()
    threading.Thread(target=_fulfil, args=(future, call), daemon=True).start()
    return future.result()


def _fulfil(future: Future[Answer], call: Callable[[], Answer]) -> None:
    try:
        answer = call()
    except BaseException as error:  # noqa: BLE001 (it is raised where the future is waited for)
        future.set_exception(error)
    else:
        future.set_result(answer)

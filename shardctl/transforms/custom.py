"""A user's own function, named as module:function."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import json
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeVar

import numpy as np

from shardctl.errors import Rejection, UsageError
from shardctl.format.roles import Sample
from shardctl.system.files import read_bytes, read_named
from shardctl.system.options import Text, Whole, setting
from shardctl.system.packages import find_function
from shardctl.transforms.base import GroupTransform, SampleTransform, Transform
from shardctl.transforms.settings import TABLE
from shardctl.transforms.values import describe, is_text

MESSAGE_CHARACTERS = 500
"""How much of what a function's exception says is kept: every reject has a copy."""


def rejection_of(target: str, error: BaseException) -> Rejection:
    """Return the rejection for an exception that the code `target` raised."""
    name = type(error).__name__
    return Rejection("transform", name, f"{target} raised {name}: {_text(error)}")


def samples_of(result: Any, target: str, known_names: set[str]) -> Sequence[Sample]:
    """Return the samples that `target` returned for one sample: a dict, a list of them, or None for
    no sample.

    `known_names` are names of fields that were checked already; those that are checked now are
    added. Raises Rejection.
    """
    if type(result) is dict and result.keys() <= known_names:
        return (dict(result),)  # the function may keep the other one, and change it later
    if result is None:
        return ()
    made = result if isinstance(result, list | tuple) else (result,)
    for each in made:
        if not isinstance(each, dict):
            message = (
                f"{target} returned {describe(each)}; it must return the sample (a dict), a "
                "list of them, or None"
            )
            raise Rejection("transform", "not-a-sample", message)
        if not each.keys() <= known_names:
            for name in each:
                _check_name(target, name)
            known_names.update(each)
    return [dict(each) for each in made]


def code_digest(target: str, code: Any) -> str | None:
    """Return the SHA-256 of what decides what the code `target` does, None if nothing is known that
    does.

    That is what was declared of it, else the file of its module, and the file that it was written
    in where that is another one.
    """
    said = declared(code) or declared(_innermost(code))
    if said is not None:
        version, modules = said
        files = {module: _module_digest(target, module) for module in modules}
        told = json.dumps([version, files], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()
    try:
        source = inspect.getsourcefile(_innermost(code))
    except TypeError:  # it is part of Python, or of a compiled module
        source = None
    module = sys.modules.get(target.partition(":")[0])
    paths = dict.fromkeys((source, getattr(module, "__file__", None)))
    digests = [hashlib.sha256(_read(path)).hexdigest() for path in paths if path]
    if len(digests) < 2:
        return digests[0] if digests else None
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _text(error: BaseException) -> str:
    try:
        return str(error)[:MESSAGE_CHARACTERS]
    except Exception:  # noqa: BLE001 - a user's exception class may do anything
        return "it cannot be shown"


def _check_name(target: str, name: Any) -> None:
    """Raise Rejection if this cannot be the name of a column."""
    why = "the name of a field must be a string" if not isinstance(name, str) else ""
    if not why and not is_text(name):
        why = "that cannot be written as UTF-8"
    if why:
        message = f"{target} set a field that is called {describe(name)}; {why}"
        raise Rejection("transform", "not-a-name", message)


def _innermost(function: Any) -> Any:
    """Return what holds the code: of a partial its function, of a bound method the function, of an
    object its class."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if inspect.ismethod(function):
        return function.__func__
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function)


def _read(path: str) -> bytes:
    try:
        return read_named(Path(path))
    except OSError as error:
        raise UsageError(
            f"transform: {path} cannot be read, and is part of the fingerprint ({error})"
        ) from error


# --- what a person declares of an own function or class: its version, and the modules that it
# depends on ---

Code = TypeVar("Code", bound=Callable[..., Any])

ATTRIBUTE = "__shardctl_declared__"


Declared = tuple[str, tuple[str, ...]]
"""What stands for the code of a function in the fingerprint of a dataset: its version, and the
modules whose content does."""


def transform(*, version: str, modules: Iterable[str | ModuleType] = ()) -> Callable[[Code], Code]:
    """Declare the version of a function or class that is a step of recipes.

        @shardctl.transform(version="2", modules=["my.helpers"])
        def sharpen(sample): ...

    Without it, each change in the file of the function makes another dataset, even a change of a
    comment. With it, only the version counts, and the content of the `modules`. List the modules
    with code that the function calls, as names or as imported modules. For a package, all of its
    Python files count. Give a new version if the function returns other values. Raises UsageError.
    """
    if not isinstance(version, str) or not version:
        raise UsageError(f'the version of a transform is a string, such as "2"; it is {version!r}')
    listed = modules if isinstance(modules, Iterable) and not isinstance(modules, str) else (None,)
    names = tuple(each.__name__ if isinstance(each, ModuleType) else each for each in listed)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"modules takes a list of modules; it is {modules!r}")

    def declare(code: Code) -> Code:
        if not callable(code):
            raise UsageError(f"a transform is a function or a class; it is {code!r}")
        setattr(code, ATTRIBUTE, (version, names))
        return code

    return declare


def declared(code: Any) -> Declared | None:
    """Return what was declared of a function or of this very class, None if nothing was."""
    return getattr(code, "__dict__", {}).get(ATTRIBUTE)


def _module_digest(target: str, name: str) -> str:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a person's module may raise anything
        raise UsageError(
            f"transform {target}: cannot import {name}, which it depends on ({error})"
        ) from error
    folders = getattr(module, "__path__", ())
    files = [file for folder in folders for file in sorted(Path(folder).rglob("*.py"))]
    if not files and getattr(module, "__file__", None):
        files = [Path(str(module.__file__))]
    if not files:
        raise UsageError(f"transform {target}: {name}, which it depends on, has no file")
    try:
        digests = [hashlib.sha256(read_bytes(file)).digest() for file in files]
        return hashlib.sha256(b"".join(digests)).hexdigest()
    except OSError as error:
        raise UsageError(
            f"transform {target}: a file of {name}, which it depends on, cannot be read ({error})"
        ) from error


class Custom(SampleTransform, step="custom"):
    """Calls `function(sample)`, or `function(sample, rng)` where it asks for rng. Anything that can
    be called will do.

    It gets the sample as a dict, `image` as a writable (height, width, 3) uint8 array, and returns
    the changed dict, or a list of several; None leaves the sample out. `rng` is a
    numpy.random.Generator keyed by the seed, the sample's key and its variant.
    """

    target: str = setting(Text(), help="MODULE:FUNCTION.")

    given: ClassVar[Callable[..., Any] | None] = None
    """The function itself, where a person has given that and not its name."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Custom:
        """Return the step of a function itself. Raises UsageError for what cannot be called with a
        sample."""
        if not callable(function) or inspect.isclass(function):
            raise UsageError(f"transform takes functions, or MODULE:FUNCTION, not {function!r}")
        named = _innermost(function)
        step = cls(target=f"{named.__module__}:{named.__qualname__}")
        step.__dict__["_function"] = step.__dict__["given"] = function
        step._call  # noqa: B018 - imported once, and kept
        return step

    def __reduce__(self) -> Any:
        """Send the function itself to another process, or the name that finds it there."""
        return (Custom, (self.target,)) if self.given is None else (Custom.of, (self.given,))

    def check_sending(self) -> None:
        """Raise UsageError if other processes cannot be sent the function."""
        try:
            if self.given is not None and _innermost(self.given).__module__ == "__main__":
                raise ValueError("it is a function of the program that runs")
            pickle.dumps(self.given)
        except Exception as error:
            raise UsageError(
                f"transform {self.target}: other processes cannot be sent it ({error}); put it into a "
                "module and import it, or leave out processes="
            ) from error

    def loaded(self, folder: Path | None = None) -> Transform:
        """Import the function, to be sure that it can be called. A class becomes a model. Raises
        UsageError."""
        found = self._function
        if inspect.isclass(found) and not issubclass(found, dict):  # which is a function too
            return Model(target=self.target).loaded()
        self._call  # noqa: B018 - imported once, and kept
        return self

    @property
    def draws(self) -> bool:
        """Whether the function asks for rng."""
        return self._call[1]

    def apply(self, sample: Sample, rng: np.random.Generator | None) -> Sequence[Sample]:
        """Call the function. Raises Rejection (stage `transform`) where it raises or returns no
        samples."""
        result = _called(self.target, self._call[0], sample, rng)
        return samples_of(result, self.target, self.known_names)

    def code_digest(self) -> str | None:
        """Return the SHA-256 of what decides what the function does, None if nothing is known that
        does."""
        return code_digest(self.target, self._function)

    @cached_property
    def _function(self) -> Callable[..., Any]:
        return find_function(self.target, "transform")

    @cached_property
    def _call(self) -> tuple[Callable[[Sample, np.random.Generator | None], Any], bool]:
        """The function, called with the sample, and with rng where it asks for it; and whether it
        does. Raises UsageError."""
        function = self._function
        if _is_other(function):
            raise UsageError(
                f"transform {self.target}: is async or a generator, not an ordinary function"
            )
        named = _takes(function, None, rng=None)
        if named and "rng" in inspect.signature(function).parameters:
            return (lambda sample, rng: function(sample, rng=rng)), True
        if _takes(function, None):
            return (lambda sample, rng: function(sample)), False
        if _takes(function, None, None):
            return function, True
        raise UsageError(
            f"transform {self.target}: takes {inspect.signature(function)}, not (sample) or "
            "(sample, rng)"
        )


def _is_other(function: Any) -> bool:
    """Return whether a function is async or a generator."""
    return inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function)


def _takes(function: Any, *positional: Any, **named: Any) -> bool:
    """Return whether a function takes these arguments. Some that are written in C do not say: then
    only whether there are none by name."""
    try:
        inspect.signature(function).bind(*positional, **named)
    except TypeError:
        return False
    except ValueError:
        return not named
    return True


def _called(target: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a person's function. Raises Rejection (stage `transform`) where it raises."""
    try:
        return function(*arguments)
    except (Rejection, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        # sys.exit() must not end a conversion that runs in this process
        raise rejection_of(target, error) from error


# --- a person's own class, which is set up once and called on many samples ---

MODELS_KEPT = 4
"""Objects of users' classes that a process keeps: with `workers=0` one process may do many
conversions."""


class Model(GroupTransform, step="model"):
    """Makes an object of a class once in each worker, `Class(**arguments)`, and calls it with lists
    of `batch` samples.

    The samples are dicts as a function gets them. The object returns a list of the same length: for
    each sample the changed dict, a list of several, or None, which leaves it out.
    """

    target: str = setting(Text(), help="MODULE:CLASS.")
    batch: int = setting(Whole(1, 65536), 32, "Most samples in a call.")
    arguments: str = setting(TABLE, "{}", "A table with the keywords for the class.")

    def prepare(self) -> None:
        """Import the class, to be sure that it can be used. No object is made. Raises
        UsageError."""
        self._class  # noqa: B018 - imported once, and kept

    def code_digest(self) -> str | None:
        """Return the digest of what decides what the class does, and of its `version`."""
        digest = code_digest(self.target, self._class)
        version = getattr(self._class, "version", None)
        if version is None:
            return digest
        return hashlib.sha256(f"{digest} {version}".encode()).hexdigest()

    def begin(self) -> None:
        """Make the object, or find the one that this process has made already. Raises UsageError if
        that fails."""
        self._model()

    def apply_together(self, samples: list[Sample]) -> list[Sequence[Sample] | Rejection]:
        """Call the object. Raises Rejection (stage `transform`) where it raises, or returns no list
        with an item for each."""
        count = len(samples)
        results = _called(self.target, self._model(), samples)
        if not isinstance(results, list | tuple) or len(results) != count:
            message = (
                f"{self.target} returned {describe(results)} for a list of {count}; it must "
                "return a list of the same length"
            )
            raise Rejection("transform", "not-a-list", message)
        return [self._made(result) for result in results]

    def _made(self, result: Any) -> Sequence[Sample] | Rejection:
        try:
            return samples_of(result, self.target, self.known_names)
        except Rejection as rejection:
            return rejection

    @cached_property
    def _class(self) -> type[Any]:
        """The class. Raises UsageError."""
        found = find_function(self.target, "transform")
        if not inspect.isclass(found):
            raise UsageError(
                f"transform {self.target}: is not a class, which model needs; custom takes "
                "functions"
            )
        calls = (vars(base).get("__call__") for base in found.__mro__)
        call = next(filter(None, calls), None)
        if call is None or _is_other(call) or not _takes(call, None, []):
            raise UsageError(
                f"transform {self.target}: needs an ordinary method __call__ for a list of samples"
            )
        version = getattr(found, "version", None)
        if version is not None and not isinstance(version, str):
            raise UsageError(
                f"transform {self.target}: its version must be a string; it is {describe(version)}"
            )
        return found

    def _model(self) -> Callable[[list[Sample]], Any]:
        # Made for a class, and not for its name: a module may have been imported again.
        return _made_once(self._class, self.target, self.arguments)  # type: ignore[arg-type]  # classes are hashable


@lru_cache(maxsize=MODELS_KEPT)
def _made_once(class_: type[Any], target: str, arguments: str) -> Callable[[list[Sample]], Any]:
    try:
        return class_(**json.loads(arguments))  # type: ignore[no-any-return]  # whatever a person's class makes
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        shown = f" with arguments {arguments}" if arguments != "{}" else ""
        raise UsageError(
            f"transform {target}: making it{shown} failed: {rejection_of(target, error).message}"
        ) from error

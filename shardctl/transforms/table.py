"""The names that a recipe may use, and what they are."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

from shardctl.errors import UsageError
from shardctl.system.text import printable, unknown
from shardctl.transforms.base import BatchTransform, Transform, settings_of
from shardctl.transforms.settings import Checked, Json, SettingError, each_of, raise_any

_MODULES = {
    "image.views": """resize letterbox pad crop random_crop random_resized_crop five_crop ten_crop
        hflip vflip""",
    "image.warp": """rotate random_rotation affine random_affine shear perspective
        random_perspective elastic""",
    "image.values": """adjust_brightness adjust_contrast adjust_saturation adjust_hue color_jitter
        photometric_distort grayscale channel_permutation channel_dropout autocontrast equalize
        posterize solarize invert gaussian_blur adjust_sharpness gaussian_noise salt_and_pepper
        jpeg erase random_erasing""",
    "image.automatic": "rand_augment trivial_augment auto_augment aug_mix",
    "image.composite": "choice maybe sequence",
    "image.filters": """filter_size filter_aspect filter_area filter_blur filter_uniform
        filter_date""",
    "text.cleaning": "normalize lower_case control_characters whitespace html redact replace",
    "text.deduplicate": "deduplicate",
    "text.stop_words": "stop_words filter_stop_words segment",
    "text.filters": """filter_length filter_gopher filter_gopher_repetition filter_c4
        filter_fineweb""",
    "text.tokens": "tokenize tokenize_chat",
    "text.pack": "pack",
    "custom": "custom model",
}
"""The modules of this package, and the names of the steps in each, in the order of the
documentation."""


TOKEN_STEPS = ("tokenize", "tokenize_chat", "pack")
"""The steps that make tokens, and pack them: what works on texts comes before them."""


class Table(UserDict[str, Any]):
    """The steps by their names. Modules are imported when a step of theirs is asked for: all of
    them take 40 ms."""

    def __getitem__(self, name: str) -> type[Transform]:
        found = self.data[name]
        if isinstance(found, str):
            steps = vars(import_module(f"shardctl.transforms.{found}")).values()
            found = next(step for step in steps if _is_step(step) and step.name == name)
            self.data[name] = found
        return found  # type: ignore[no-any-return]  # it is a step now


def _is_step(value: Any) -> bool:
    # Python 3.10 says of list[int] that it is an instance of type, and then issubclass raises an
    # error.
    return issubclass(type(value), type) and issubclass(value, Transform) and "name" in vars(value)


TRANSFORMS = Table({name: module for module, names in _MODULES.items() for name in names.split()})
"""The steps that a recipe may name."""


_ELSEWHERE = {
    "crop": "centercrop centrecrop",
    "custom": "lambda map apply function",
    "erase": "cutout",
    "filter_length": "minchars maxchars minwords maxwords minlength maxlength",
    "hflip": "horizontalflip randomhorizontalflip fliplr mirror",
    "sequence": "compose",
    "vflip": "verticalflip randomverticalflip flipud",
}
"""Names in other libraries, in small letters, of steps that are called otherwise here."""


LISTING = "shardctl recipe steps"
"""The command that prints all steps."""


def parse_step(given: Any) -> Transform:
    """Return a step from its name and its settings. Raises SettingError with all that is wrong;
    the key of each is the setting."""
    if not isinstance(given, dict):
        raise SettingError(
            "a step is a table with its name and its settings, in Python {'name': 'resize', 'size': "
            f"256}}; it is {given!r}"
        )
    name = given.get("name")
    if name is None:
        raise SettingError(f'a step needs its name, such as name = "resize"; see `{LISTING}`')
    if not isinstance(name, str) or name not in TRANSFORMS:
        raise SettingError(unknown_step(name), "name")
    settings = {key: value for key, value in given.items() if key != "name"}
    return TRANSFORMS[name].parse(**settings)


def unknown_step(name: Any) -> str:
    """Say that there is no such step, and which one does the same or is similar."""
    plain = str(name).lower().replace("_", "")
    meant = next((step for step, words in _ELSEWHERE.items() if plain in words.split()), None)
    if meant is None:
        return unknown("step", name, TRANSFORMS, LISTING)
    return f"step {printable(name)!r} is not known; `{meant}` does it: `shardctl help {meant}`"


def _steps_of(value: Any) -> tuple[Transform, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of steps: [[transform]] with two brackets")
    steps: list[Transform] = []
    errors: list[SettingError] = []
    for number, given in enumerate(value):
        try:
            steps.append(parse_step(given))
        except SettingError as error:
            errors += [each.within(number) for each in each_of(error)]
    raise_any(errors)
    return tuple(steps)


STEPS = Checked(
    _steps_of,
    {"type": "array", "items": {"$ref": "#/definitions/step"}},
    lambda steps: [settings_of(step) for step in steps],
)
"""A list of steps, each with its `name` and its settings: each is as the definition `step` says."""


def definitions() -> Json:
    """Return the JSON schemas of all steps by their names, and of `step`, which is one of them."""
    each = {name: step.json_schema() for name, step in TRANSFORMS.items()}
    return {"step": {"oneOf": [{"$ref": f"#/definitions/{name}"} for name in TRANSFORMS]}, **each}


# --- what can be told of the recipe of a dataset as plain data: it is not trusted, and what it names is
# not imported ---

OWN = ("custom", "model")
"""The names of the steps that call a person's code."""


def samples_per_record(recipe: Mapping[str, Any]) -> int:
    """Return how many samples a recipe makes of a record: its variants, and the parts of each. The
    functions of a person are left aside."""
    count = int(recipe.get("variants") or 1)
    for step in _steps(recipe, Transform, "samples"):
        count *= step.samples
    return count


def splits_records(recipe: Mapping[str, Any]) -> bool:
    """Return whether a step may make several samples of a record: any number."""
    return any(step.splits for step in _steps(recipe, BatchTransform, "splits"))


def _steps(recipe: Mapping[str, Any], kind: type[Transform], told: str) -> Iterator[Any]:
    """Yield the steps of a kind that say something else than others of what is `told`."""
    for given in recipe.get("transform") or ():
        found = TRANSFORMS.get(str(given.get("name"))) if isinstance(given, dict) else None
        if found and issubclass(found, kind) and getattr(found, told) is not getattr(kind, told):
            try:
                yield parse_step(given)
            except SettingError:
                continue


def user_functions(recipe: Mapping[str, Any]) -> list[str]:
    """Return the names of the user functions in a recipe."""
    steps = recipe.get("transform")
    steps = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return [str(step.get("target")) for step in steps if str(step.get("name")) in OWN]


def refuse_unnamed_functions(
    recipe: Mapping[str, Any], named: Iterable[str], shown: str, who: str
) -> None:
    """Raise UsageError if the recipe of a dataset has user functions that the caller did not name.
    `shown` is where it is."""
    unnamed = [target for target in user_functions(recipe) if target not in named]
    if unnamed:
        options = " ".join(f"--transform {printable(target)}" for target in unnamed)
        raise UsageError(
            f"{shown}: was made with user functions, which {who} runs if named: check the code, "
            f"and add {options}"
        )

"""The request for a conversion: its arguments, checked. Nothing of the sources is read, and they
need not be there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from shardctl.errors import UsageError
from shardctl.format.names import Json
from shardctl.making.options import Labels, Options, chosen_options
from shardctl.making.paths import check_copies_folder, destination_of
from shardctl.making.plan.labels import read_classes
from shardctl.making.plan.listing import LabelRule
from shardctl.making.plan.splits import PlanRules, SplitRule
from shardctl.sources.annotations import AnnotationRule
from shardctl.sources.files import SourceRoot
from shardctl.system.locations import is_url
from shardctl.system.stores import refuse_half_url
from shardctl.system.text import printable
from shardctl.transforms.recipe import Recipe


@dataclass(frozen=True)
class ConvertRequest:
    """The arguments of a conversion. `recipe` is as it was given: it may leave to the sources what
    they hold.

    The dataset goes to `destination`, a URL or an absolute path.
    """

    roots: tuple[SourceRoot, ...]
    destination: str | Path
    recipe: Mapping[str, Any]
    options: Options
    split: SplitRule

    @classmethod
    def of(
        cls,
        src: str | Path | Sequence[str | Path],
        dst: str | Path,
        recipe: Json | str | Path | None,
        options: Mapping[str, Any],
    ) -> ConvertRequest:
        """Check the arguments of `convert`. Raises UsageError, InputError, StorageError."""
        Labels().check("the source", src)
        several = [src] if isinstance(src, str | Path) else src
        if not all(map(str, several)):
            raise UsageError("the source is a path; it is ''")
        if recipe is not None and not isinstance(recipe, dict | str | Path):
            raise UsageError(
                f"the recipe is a dict such as {{'transform': [{{'name': 'hflip'}}]}}, or a "
                f"path; it is {recipe!r}"
            )
        for source in several:
            if not is_url(source):
                refuse_half_url(str(source))  # before it is a path, which has one / for //
        chosen, given = chosen_options("convert", recipe, options)
        chosen.check()
        split = SplitRule.parse(chosen.split)
        roots = [SourceRoot.of(source) for source in several]
        destination = destination_of(dst, roots)
        if isinstance(destination, str) and chosen.keep_generations:
            raise UsageError(
                f"{printable(destination)}: a store keeps no generations; leave out "
                "--keep-generations"
            )
        if chosen.copy_rejects is not None:
            if is_url(chosen.copy_rejects):
                raise UsageError(
                    f"{printable(chosen.copy_rejects)}: rejects can be copied to a folder of "
                    "this machine only"
                )
            check_copies_folder(Path(chosen.copy_rejects), destination, roots)
        return cls(tuple(roots), destination, given, chosen, split)

    def changed(self, **options: Any) -> ConvertRequest:
        """Return the same with other options."""
        return replace(self, options=replace(self.options, **options))

    @cached_property
    def labels(self) -> LabelRule:
        """Where labels come from. Raises UsageError."""
        options = self.options
        annotations = AnnotationRule(
            options.boxes_outside, options.annotation_frame, options.yolo_task
        )
        rule = LabelRule.parse(
            options.labels, options.lenient_labels, options.drop_columns, annotations
        )
        return (
            rule
            if options.classes is None
            else replace(rule, classes=read_classes(str(options.classes)))
        )

    def rules(self, recipe: Recipe) -> PlanRules:
        """Return how the inputs are divided. Raises UsageError."""
        if recipe.group is not None and not self.split.shares:
            raise UsageError(
                f"--group {recipe.group} needs a split by shares; add --split train=0.9,val=0.1"
            )
        by_key = recipe.key_source is not None
        return PlanRules(
            self.split, self.labels, self.options.shuffle, recipe.seed, by_key, recipe.undivided
        )

    def recorded_settings(self, recipe: Recipe) -> Json:
        """Return what the manifest records as settings."""
        sizes = {
            "shard_size": self.options.shard_size,
            "samples_per_shard": self.options.samples_per_shard,
        }
        return {**self.rules(recipe).record(), **sizes}

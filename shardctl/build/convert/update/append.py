"""Inputs that are added to a dataset, without a look at those that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from shardctl.build.convert.update.previous import PreviousDataset
from shardctl.build.plan.listing import CHUNK_ROWS, KnownFiles, LabelRule
from shardctl.build.shards.planned import Root
from shardctl.errors import InputError
from shardctl.sources.kinds import Form
from shardctl.sources.roots import SourceRoot, folder_of
from shardctl.sources.walk import FoundFile, is_hidden, suffix_of, walk
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import path_below, within
from shardctl.system.text import printable

Place = tuple[int, str]
"""Where a source lies in the sources of the dataset: the number of one of these, and the path below
it, "" for all of it."""


class Appending:
    """Sources of which the inputs are added to a dataset. Raises InputError for one whose labels
    are in files."""

    def __init__(
        self, before: PreviousDataset, given: Sequence[SourceRoot], rule: LabelRule
    ) -> None:
        self._before, self._given = before, given
        if rule.mode == "file" or rule.annotations or "columns" in before.files.column_names:
            raise InputError(
                "--append cannot tell what labels files and annotations say of inputs that it does "
                "not look at; use --update"
            )
        recorded = list(before.manifest.sources)
        self._places: list[Place] = []
        for root in given:
            place = root.recorded
            lies = ((number, path_below(place, source)) for number, source in enumerate(recorded))
            found, below = next(
                ((number, path) for number, path in lies if path is not None), (len(recorded), "")
            )
            if found == len(recorded):
                recorded.append(place)
            if any(map(is_hidden, filter(None, below.split("/")))):
                raise InputError(
                    f"{printable(root.text)}: is in a hidden folder of "
                    f"{printable(recorded[found])}; give it another name"
                )
            self._places.append((found, below))
        self.sources = recorded
        """The sources of the dataset afterwards: those that it has, and the given ones that are in
        none of these."""

    @property
    def roots(self) -> tuple[SourceRoot, ...]:
        """The same sources. Some may be gone: nothing is read of those that were not given."""
        return tuple(map(SourceRoot, self.sources))

    @property
    def bases(self) -> tuple[Root, ...]:
        """The folders that paths of files are relative to."""
        return tuple(map(Root.anywhere, map(folder_of, self.sources)))

    def known(self) -> KnownFiles:
        """Return the files of the dataset, and the walk that finds new ones."""
        form = Form.ONE if self._before.manifest.records is None else Form.MANY
        return KnownFiles(form, self._recorded, self._walk)

    def _recorded(self) -> Iterator[FoundFile]:
        table, times, first = self._before.files, self._before.state.mtime_ns, 0
        begins = list(map(within, self.sources))
        for batch in table.select(["path", "root", "size"]).to_batches(max_chunksize=CHUNK_ROWS):
            columns = (batch.column(name).to_pylist() for name in ("path", "root", "size"))
            for number, (path, root, size) in enumerate(zip(*columns, strict=True), first):
                folder, _, name = path.rpartition("/")
                opened = f"{begins[root]}{path}"
                yield FoundFile(
                    root, path, opened, folder, suffix_of(name), size, int(times[number]), None
                )
            first += batch.num_rows

    def _walk(self, notice: Callable[[str], None]) -> Iterator[FoundFile]:
        """Yield the files in the given sources, by their paths in the sources of the dataset, in
        the order of these."""
        for place, root in sorted(zip(self._places, self._given, strict=True)):
            number, below = place
            if not root.is_folder and below:
                folder, _, _ = below.rpartition("/")
                yield from (
                    file._replace(root=number, path=below, folder=folder)
                    for file in walk([root], notice)
                )
                continue
            for file in walk([root], notice):
                folder = "/".join(part for part in (below, file.folder) if part)
                path = f"{below}/{file.path}" if below else file.path
                yield file._replace(root=number, path=path, folder=folder)


def refuse_anew(why: str, folder: LocalFolder) -> InputError:
    """Return the error where an addition would change all shards."""
    return InputError(
        f"{folder.shown()}: --append only adds shards, but these inputs would change all shards, "
        f"since {why}; use --update"
    )

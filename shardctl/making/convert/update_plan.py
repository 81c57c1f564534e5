"""The plan that brings a dataset up to date: which shards are kept, which are built again, and
which are new."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.format.arrays import column_of
from shardctl.format.layout import Layout
from shardctl.format.names import FILES, PLAN, number_of_shard, shard_name
from shardctl.format.roles import Label
from shardctl.format.tables import UNIT_FIELDS, open_table
from shardctl.making.convert.columns import names_left_out, refuse_partitions
from shardctl.making.convert.conversion_plan import Material, layout_before_functions
from shardctl.making.convert.discover import Discovery
from shardctl.making.convert.listener import Changes
from shardctl.making.convert.previous import Matching, PreviousDataset, match_files, write_reused
from shardctl.making.plan.labels import LABEL, Labelling, job_files_schema, label_files, write_files
from shardctl.making.plan.listing import CHUNK_ROWS, Flags, Numbers
from shardctl.making.plan.plan import (
    JOB_PLAN_SCHEMA,
    NOT_KEPT,
    Planner,
    SplitPlan,
    Units,
    job_table,
    order_units,
    write_shards,
)
from shardctl.making.plan.splits import Draw, Splitting, look_inside
from shardctl.making.shards.job import DatasetJob, Root
from shardctl.sources.formats import is_json
from shardctl.sources.label_table import some
from shardctl.sources.types import Types
from shardctl.system.files import copy_file
from shardctl.system.folders import LocalFolder
from shardctl.system.text import printable
from shardctl.transforms.text.deduplicate import Deduplicate

FULL = 0.9
"""The last shard of a split with this share of the records of a full one is full: it is not built
again for a few more."""


@dataclass(frozen=True)
class UpdatePlan:
    """An update that is decided on and not begun. `files` is the path of the job's table of files.

    `rows` of the plan are in their order, each with the number of its shard in the job (`shard`),
    and its row in the plan before (`of_old`, -1: it is new, or has changed): (rows,) int64 each.
    `shards` has the split, the number in it, and the number of the shard before that is kept (or
    NOT_KEPT) of every shard of the job.
    """

    planning: _Planning
    matching: Matching
    draw: Draw | None
    files: Path
    rows: pa.Table
    shard: Numbers
    of_old: Numbers
    shards: tuple[tuple[int, int, int], ...]
    splits: tuple[SplitPlan, ...]

    @property
    def kept(self) -> list[int]:
        """The shards of the dataset before that are kept, by their numbers there."""
        return [kept for *_, kept in self.shards if kept != NOT_KEPT]

    def job(self, folder: Path, roots: tuple[Root, ...], parts: dict[str, str]) -> DatasetJob:
        """Return the job in its folder."""
        before, planning = self.planning.before, self.planning
        manifest, known, kept = before.manifest, set(before.table.names), len(self.kept)
        names = (shard_name(self.splits[split].name, number) for split, number, _ in self.shards)
        old = sum(name in known for name in names)
        changes = Changes(*self.matching.counts, old - kept, len(self.shards) - old, kept)
        records = zip(self._records.tolist(), self.shards, strict=True)
        return DatasetJob(
            folder,
            roots,
            planning.recipe,
            before.layout,
            self.splits,
            before.reading.fields,
            before.reading.by_field,
            self.draw,
            planning.rules.shuffle,
            parts=parts,
            beside=before.state.digest_beside,
            updates=before.digest,
            kept_records=sum(count for count, (*_, kept) in records if kept != NOT_KEPT),
            changes=asdict(changes),
            sample_bytes=manifest.bytes / max(1, manifest.samples),
            samples_per_record=manifest.samples / max(1, manifest.inputs),
            record_seconds=(manifest.seconds or 0.0) / max(1, manifest.inputs),
        )

    @property
    def _records(self) -> Numbers:
        """How many records each shard has, (shards,)."""
        records = np.zeros(len(self.shards), np.int64)
        np.add.at(records, self.shard, self.rows["records"].to_numpy())
        return records

    def write(self, folder: Path) -> None:
        """Write the tables of the job."""
        copy_file(self.files, folder / FILES)
        with job_table(folder / PLAN, JOB_PLAN_SCHEMA) as plan:
            plan.write_table(self.rows, max_chunksize=CHUNK_ROWS)
        counts = np.bincount(self.shard, minlength=len(self.shards))
        first = np.cumsum(counts) - counts
        split, number, kept = np.array(self.shards, np.int64).reshape(-1, 3).T
        columns = np.stack([split, number, first, counts, self._records, kept], axis=1)
        write_shards(folder, array("q", columns.tobytes()))
        built = np.where(kept == NOT_KEPT, np.arange(len(kept)), -1)
        before, recipe = self.planning.before, self.planning.recipe
        write_reused(folder, before, recipe, built[self.shard], self.of_old)


def plan_update(material: Material, before: PreviousDataset) -> UpdatePlan | str:
    """Compare the sources with the dataset, and plan what is to be built; or return why all shards
    must be made again, as the end of a sentence. Raises InputError."""
    return _Planning(**vars(material), before=before).run()


@dataclass(frozen=True, kw_only=True)
class _Planning(Material):
    """What the plan of an update is made from."""

    before: PreviousDataset

    def run(self) -> UpdatePlan | str:
        """Plan the update, or say why that cannot be. Raises InputError."""
        listing, before, discovery = self.listing, self.before, self.discovery
        if why := self._other_reading():
            return why
        splitting = self.splitting()
        draw = splitting.draw if splitting.of_file is None else None
        if draw != before.reading.draw:
            return "the splits are made in another way"
        labelling = self._labelling_of_records()
        if labelling is None:
            labelling = label_files(listing, self.rules, splitting, self.recipe, None)
        files = self.folder / f"now-{FILES}"
        write_files(files, listing, labelling)
        self._refuse_lost_labels(open_table(LocalFolder(files.parent), files.name))
        if why := self._other_columns(labelling):
            return why
        matching = match_files(before, listing, files)
        old = self._old_rows(matching, splitting)
        fresh = self._fresh_files(matching, old)
        units = discovery.find_units(fresh)
        look_inside(listing, self.rules.split, splitting)
        why = "" if listing.whole else self._other_types(discovery, units, splitting)
        if why:
            return why
        planner = Planner(units, order_units(units, splitting, self.rules.shuffle, fresh))
        rows, shard, of_old, shards, splits = self._join(old, units, planner, splitting.names)
        return UpdatePlan(self, matching, draw, files, rows, shard, of_old, shards, splits)

    def _other_reading(self) -> str:
        """Say why the files cannot be read as before, "" if they can."""
        if self.listing.whole != (self.before.manifest.records is None):
            return "the files are of another form"
        compares = any(isinstance(step, Deduplicate) for step in self.recipe.batch_transforms)
        if compares or self.recipe.duplicates.mode != "keep":
            return "duplicates are looked for among all inputs"
        changed = self.listing.digest_beside != self.before.state.digest_beside
        return "files that say what is read of others have changed" if changed else ""

    def _labelling_of_records(self) -> Labelling | None:
        """Return where labels of records came from when the dataset was made, None if it was not
        the records themselves."""
        if self.listing.whole or self.listing.side is not None:
            return None
        if self.recipe.joins:
            return Labelling()
        roles = self.before.layout.roles
        names = {
            name: role.names
            for name, role in roles.by_name.items()
            if isinstance(role, Label) and role.names
        }
        fields = self.before.reading.fields
        assert fields is not None, "files of many records have columns"
        if self.before.reading.by_field:
            return Labelling(
                names.get(LABEL),
                by_field=True,
                declared={n: of for n, of in names.items() if n != LABEL},
            )
        if self.recipe.label_source in fields.names or self.rules.labels.mode == "none":
            return Labelling(names.get(LABEL), declared=names)
        return None

    def _refuse_lost_labels(self, files: pa.Table) -> None:
        """Raise DatasetError if the files had labels, or values of a labels file, and none of them
        has any more."""
        for name, what in (("label", "labels"), ("columns", "values of a labels file")):
            there = name in files.column_names and files[name].null_count < files.num_rows
            if name in self.before.files.column_names and not there:
                raise DatasetError(
                    f"{self.before.folder.shown()}: its samples have {what}, but the sources no "
                    "longer have any; bring the labels file or folder back, or use --overwrite"
                )

    def _other_columns(self, labelling: Labelling) -> str:
        """Say in what columns or names of classes the samples of the sources as they are now
        differ, "" for nothing."""
        before = self.before.layout
        reading = self.before.reading
        job = self.job(reading.fields, reading.by_field)
        now = layout_before_functions(job, labelling, self.listing)
        if now.classes != before.classes:
            come, gone = (
                sorted(set(one or ()) - set(other or ()))
                for one, other in ((now.classes, before.classes), (before.classes, now.classes))
            )
            said = [f"{some(come)} {'is' if len(come) == 1 else 'are'} new"] * bool(come)
            said += [f"{some(gone)} {'is' if len(gone) == 1 else 'are'} gone"] * bool(gone)
            return (
                f"the classes have other numbers, as {' and '.join(said) or 'their order changed'}"
            )
        columns = job_files_schema(self.listing)
        known = [
            schema.field("columns").type if "columns" in schema.names else None
            for schema in (columns, self.before.files.schema)
        ]
        same = known[0] == known[1] and _fits(
            now, before, exactly=not self.recipe.sample_transforms
        )
        return "" if same else "the columns, or what is known of them, are others"

    def _other_types(self, discovery: Discovery, units: Units, splitting: Splitting) -> str:
        """Say which other types, or labels that were not there, the new records need; "" for
        none."""
        reading, fields = self.recipe.reading, self.before.reading.fields
        types = None
        if len(units) and self.recipe.typed_fields is None:
            types = discovery.find_types(units, False)
        if types is None:
            return ""
        assert fields is not None, "files of many records have columns"
        found, before = types.found(), {f.name: f.type for f in fields}
        refuse_partitions(self.listing, self.rules.labels.mode, found.names)
        self.listing.notices += names_left_out(types, self.before.layout, self.recipe)
        plain = pa.schema([f.remove_metadata() for f in fields])
        joined = Types.of_schema(plain, reading.label).join(types)
        mixed = set(joined.mixed())
        chosen, as_json = self.recipe.chosen_fields, {f.name for f in fields if is_json(f)}
        for f in joined.found():
            new = found.field(f.name).type if f.name in found.names else None
            if f.name not in before:
                if not chosen or f.name in chosen:
                    return (
                        f"new records have the field {printable(f.name)}, which the others do "
                        "not have"
                    )
            elif f.name not in as_json and (
                f.type != before[f.name] or (f.name in mixed and new != before[f.name])
            ):
                return (
                    f"the field {printable(f.name)} of new records is {new}, and was "
                    f"{before[f.name]}"
                )
        names = self.before.layout.roles.names
        for name, classes in types.classes.items():
            if names.get(name) not in (None, classes):
                return f"new files give other names to the classes of {printable(name)}"
        if self.before.reading.by_field:
            labels = (
                label_files(self.listing, self.rules, splitting, self.recipe, types).classes or ()
            )
            new_labels = sorted(set(labels) - set(self.before.layout.classes or ()))
            if new_labels:
                return f"the classes have other numbers, as {some(new_labels)} came"
        return ""

    def _old_rows(self, matching: Matching, splitting: Splitting) -> _OldRows:
        """Return what becomes of the rows of the dataset's plan."""
        before = self.before
        shard, file = before.units("shard"), before.units("file")
        now = matching.now[file]
        there = now >= 0
        names = {name: number for number, name in enumerate(splitting.names)}
        of_shard = np.array([names.get(entry.split, -1) for entry in before.table], np.int64)
        split = of_shard[shard]
        there &= split >= 0
        if splitting.of_file is not None:
            there &= splitting.of_file[np.maximum(now, 0)] == split
        same = there & matching.same[np.maximum(now, 0)]
        stays = there if self.listing.whole else same
        return _OldRows(now, shard, stays, stays & ~same, of_shard)

    def _fresh_files(self, matching: Matching, old: _OldRows) -> Flags:
        """Return which files are to be put into shards anew: new ones, and those that change their
        split; and changed ones of many records."""
        fresh = (matching.before < 0) | (
            ~matching.same if not self.listing.whole else np.zeros(len(matching.same), bool)
        )
        moved = old.now[~old.stays]
        fresh[moved[moved >= 0]] = True
        return fresh

    def _join(
        self, old: _OldRows, units: Units, planner: Planner, names: Sequence[str]
    ) -> tuple[pa.Table, Numbers, Numbers, tuple[tuple[int, int, int], ...], tuple[SplitPlan, ...]]:
        """Return the rows of the job's plan with their shards and rows before, its shards, and its
        splits."""
        before = self.before
        records = np.zeros(len(before.table), np.int64)
        np.add.at(records, old.shard[old.stays], before.units("records")[old.stays])
        touched = np.zeros(len(before.table), bool)
        touched[old.shard[~old.stays | old.changed]] = True
        shards: list[tuple[int, int, int]] = []
        splits: list[SplitPlan] = []
        parts: list[pa.RecordBatch] = []
        of_parts: list[Numbers] = []
        number_of = np.full(len(before.table), -1, np.int64)  # of a shard before in the job
        draw = before.reading.draw
        shares = [1.0] * len(names) if draw is None else np.diff([0.0, *draw.edges, 1.0]).tolist()
        for split, name in enumerate(names):
            mine = np.flatnonzero(old.of_shard == split).tolist()
            first, new = len(shards), planner.records[split]
            number_of[mine] = first + np.arange(len(mine))
            total = int(records[mine].sum()) + new
            full = self._full(total)
            takers, ends = list[int](), [0]
            for number, shard in enumerate(mine, first):
                # Those that have lost all records of theirs, and the last one, take new ones. None
                # does where inputs are appended, whose old ones may be gone.
                room = full - int(records[shard])
                has_room = room > (1 - FULL) * full and not self.options.append
                if has_room and ends[-1] < new and (not records[shard] or shard == mine[-1]):
                    takers.append(number)
                    ends.append(min(new, ends[-1] + room))
                    touched[shard] = True
            start = ends[-1]
            more = -(-(new - start) // full)
            takers += range(first + len(mine), first + len(mine) + more)
            ends += [start + (new - start) * number // more for number in range(1, more + 1)]
            for number, (start, end) in zip(takers, pairwise(ends), strict=True):
                parts.append(planner.rows(split, start, end))
                of_parts.append(np.full(parts[-1].num_rows, number, np.int64))
            # some may be missing
            numbers = [number_of_shard(before.table.names[shard]) for shard in mine]
            after = max(numbers, default=-1) + 1
            numbers += range(after, after + more)
            kept = [NOT_KEPT if touched[shard] else shard for shard in mine] + [NOT_KEPT] * more
            shards += zip([split] * len(kept), numbers, kept, strict=True)
            splits.append(SplitPlan(name, total, round(total * shares[split]), len(kept)))
        rows = self._rows_of_old(old, units)
        table = pa.concat_tables([rows, pa.Table.from_batches(parts, JOB_PLAN_SCHEMA)])
        of = np.concatenate([number_of[old.shard[old.stays]], *of_parts])
        stay = np.flatnonzero(old.stays)
        of_old = np.full(len(of), -1, np.int64)
        of_old[: len(stay)] = np.where(old.changed[stay], -1, stay)
        order = np.argsort(of, kind="stable")
        if bool((np.diff(order) != 1).any()):
            table = table.take(pa.array(order))
        rows = table.combine_chunks()
        return rows, of[order], of_old[order], tuple(shards), tuple(splits)

    def _rows_of_old(self, old: _OldRows, units: Units) -> pa.Table:
        """Return the rows of the plan before that stay, for the files as they are listed now."""
        plan = (
            self.before.plan.filter(pa.array(old.stays))
            if not old.stays.all()
            else self.before.plan
        )
        columns = {name: plan[name] for name, _ in UNIT_FIELDS}
        now = old.now[old.stays]
        columns["file"] = column_of(now.astype(np.int32))
        nothing = pa.nulls(len(now), pa.string())
        errors, messages = nothing, nothing
        if old.changed.any():  # files that are one record each
            changed = old.changed[old.stays]
            sizes = plan["size"].to_numpy().copy()
            sizes[changed] = self.listing.table["size"].to_numpy()[now[changed]]
            columns["size"] = column_of(sizes)
        if units.faults and self.listing.whole:
            faults = [units.faults.get(file) for file in now.tolist()]
            errors, messages = (
                pa.array([getattr(fault, name, None) for fault in faults], pa.string())
                for name in ("error", "message")
            )
        return pa.table([*columns.values(), errors, messages], schema=JOB_PLAN_SCHEMA)

    def _full(self, records: int) -> int:
        """Return how many records a shard of a split with so many has where all of them are
        converted anew."""
        manifest = self.before.manifest
        rows = round(records * (manifest.samples / max(1, manifest.inputs)))
        shards = self.shards_of(rows, manifest.bytes / max(1, manifest.samples))
        return max(1, -(-records // shards))


@dataclass(frozen=True)
class _OldRows:
    """What becomes of the rows of the plan before, (rows,) each: `now` is the row of the file in
    the listing, -1 if it is gone; `shard` the shard before; `stays` whether it stays in that shard;
    `changed` whether it does so with another content.

    `of_shard` is the number that the split of each shard has now, -1 if there is no such split any
    more: (shards,).
    """

    now: Numbers
    shard: Numbers
    stays: Flags
    changed: Flags
    of_shard: Numbers


def _fits(now: Layout, before: Layout, exactly: bool) -> bool:
    """Return whether the columns of two layouts are the same; unless `exactly`, those that both
    have."""
    if exactly:
        return now == before
    known = set(before.columns.names)
    both = [name for name in now.columns.names if name in known]
    roles = [{name: of.roles.by_name.get(name) for name in both} for of in (now, before)]
    return roles[0] == roles[1] and all(
        now.columns.field(name).type == before.columns.field(name).type for name in both
    )

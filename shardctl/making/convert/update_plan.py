"""The plan that brings a dataset up to date: which shards are kept, which are built again, and
which are new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, Rejection
from shardctl.format.arrays import Bools, Numbers, column_of
from shardctl.format.layout import Layout
from shardctl.format.names import FILES, PLAN, shard_name
from shardctl.format.roles import Label
from shardctl.format.tables import UNIT_FIELDS, open_table
from shardctl.making.convert.columns import names_left_out, refuse_partitions
from shardctl.making.convert.conversion import Conversion, Inputs
from shardctl.making.convert.conversion_plan import (
    discovery_of,
    layout_before_functions,
    shards_of,
    trial_job,
)
from shardctl.making.convert.discover import Discovery
from shardctl.making.convert.listener import Changes
from shardctl.making.convert.previous import Matching, PreviousDataset, match_files, write_reused
from shardctl.making.plan.labels import (
    LABEL,
    Labelling,
    job_files_schema,
    label_files,
    write_files_table,
)
from shardctl.making.plan.listing import CHUNK_ROWS
from shardctl.making.plan.plan import (
    JOB_PLAN_SCHEMA,
    NOT_KEPT,
    Planner,
    SplitPlan,
    Units,
    job_table,
    why_unread,
    write_shards,
)
from shardctl.making.plan.splits import Draw, Splitting, look_inside, split_files
from shardctl.making.shards.job import DatasetJob
from shardctl.sources.formats import is_json
from shardctl.sources.types import Types
from shardctl.system.files import copy_file
from shardctl.system.folders import LocalFolder
from shardctl.system.text import printable, some

FULL = 0.9
"""The last shard of a split with this share of the records of a full one is full: it is not built
again for a few more."""


_OldRows = tuple[Numbers, Numbers, Bools, Bools, Numbers]
"""What becomes of the rows of the plan before, (rows,) each: the row of the file in the listing, -1
if it is gone; the shard before; whether it stays in that shard; whether it does so with another
content. And the number that the split of each shard has now, -1 if there is no such split any more:
(shards,)."""


@dataclass(frozen=True)
class UpdatePlan:
    """An update that is decided on and not begun: its `job`, and `write`, which makes its tables in
    the folder of that.

    `of_old` has the row in the plan before of each row of the plan, -1: it is new, or has changed,
    (rows,) int64. `kept` are the shards of the dataset before that are kept, by their numbers
    there.
    """

    job: DatasetJob
    write: Callable[[], None]
    matching: Matching
    of_old: Numbers
    kept: list[int]


@dataclass(frozen=True)
class UpdatePlanner:
    """Plans how a conversion of these `inputs` brings the dataset `before` up to date, by a job in
    `folder`."""

    conversion: Conversion
    inputs: Inputs
    before: PreviousDataset
    folder: Path

    def plan(self) -> UpdatePlan | str:
        """Compare the sources with the dataset, and plan what is to be built; or return why all
        shards must be made again, as the end of a sentence. Notices are added to the list of the
        inputs. Raises InputError."""
        conversion, listing, before = self.conversion, self.inputs.listing, self.before
        discovery, rules = discovery_of(conversion, listing), conversion.rules
        if listing.whole != (before.manifest.records is None):
            return "the files are of another form"
        if conversion.recipe.compares_texts or conversion.recipe.duplicates.mode != "keep":
            return "duplicates are looked for among all inputs"
        if listing.digest_beside != before.state.digest_beside:
            return "files that say what is read of others have changed"
        splitting = split_files(listing, rules)
        if splitting.draw != before.reading.draw:
            return "the splits are made in another way"
        labelling = self._labelling_of_records()
        if labelling is None:
            labelling = label_files(listing, rules, splitting, conversion.recipe, None)
        files = self.inputs.scratch / f"now-{FILES}"
        write_files_table(files, listing, labelling)
        now = open_table(LocalFolder(files.parent), files.name)
        for name, what in (("label", "labels"), ("columns", "values of a labels file")):
            there = name in now.column_names and now[name].null_count < now.num_rows
            if name in before.files.column_names and not there:
                raise DatasetError(
                    f"{before.folder.shown()}: the sources have lost their {what}; bring the "
                    "labels file or folder back, or use --overwrite"
                )
        if why := self._other_columns(labelling):
            return why
        matching = match_files(before, listing, files)
        old = self._old_rows(matching, splitting)
        # put into shards anew: new files, those that change their split, and changed ones of many
        # records
        fresh = matching.before < 0
        if not listing.whole:
            fresh |= ~matching.same
        now_of, _, stays, _, _ = old
        moved = now_of[~stays]
        fresh[moved[moved >= 0]] = True
        units = discovery.find_units(fresh)
        look_inside(listing, rules.split, splitting)
        if not listing.whole and (why := self._other_types(discovery, units, splitting)):
            return why
        planner = Planner(units, splitting, rules.shuffle, fresh)
        return self._plan(
            matching,
            splitting.draw,
            files,
            old,
            self._rows_of_old(old, units),
            planner,
            splitting.names,
        )

    def _labelling_of_records(self) -> Labelling | None:
        """Return where labels of records came from when the dataset was made, None if it was not
        the records themselves."""
        if self.inputs.listing.whole or self.inputs.listing.side is not None:
            return None
        if self.conversion.recipe.joins:
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
        if (
            self.conversion.recipe.label_source in fields.names
            or self.conversion.rules.labels.mode == "none"
        ):
            return Labelling(names.get(LABEL), declared=names)
        return None

    def _other_columns(self, labelling: Labelling) -> str:
        """Say in what columns or names of classes the samples of the sources as they are now
        differ, "" for nothing."""
        before = self.before.layout
        reading = self.before.reading
        job = trial_job(self.conversion, self.inputs, reading.fields, reading.by_field)
        now = layout_before_functions(job, labelling, self.inputs.listing)
        if now.classes != before.classes:
            others = sorted(set(now.classes or ()).symmetric_difference(before.classes or ()))
            why = f"{some(others)} came or went" if others else "their order changed"
            return f"the classes have other numbers, as {why}"
        columns = job_files_schema(self.inputs.listing)
        known = [
            schema.field("columns").type if "columns" in schema.names else None
            for schema in (columns, self.before.files.schema)
        ]
        same = known[0] == known[1] and _fits(
            now, before, exactly=not self.conversion.recipe.sample_transforms
        )
        return "" if same else "the columns, or what is known of them, are others"

    def _other_types(self, discovery: Discovery, units: Units, splitting: Splitting) -> str:
        """Say which other types, or labels that were not there, the new records need; "" for
        none."""
        reading, fields = self.conversion.recipe.record_reading, self.before.reading.fields
        types = None
        if len(units) and self.conversion.recipe.typed_fields is None:
            types = discovery.find_types(units, False)
        if types is None:
            return ""
        assert fields is not None, "files of many records have columns"
        found, before = types.found(), {f.name: f.type for f in fields}
        refuse_partitions(self.inputs.listing, self.conversion.rules.labels.mode, found.names)
        self.inputs.listing.notices += names_left_out(
            types, self.before.layout, self.conversion.recipe
        )
        plain = pa.schema([f.remove_metadata() for f in fields])
        joined = Types.of_schema(plain, reading.label).join(types)
        mixed = set(joined.mixed())
        chosen = self.conversion.recipe.chosen_fields
        as_json = {f.name for f in fields if is_json(f)}
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
                label_files(
                    self.inputs.listing,
                    self.conversion.rules,
                    splitting,
                    self.conversion.recipe,
                    types,
                ).classes
                or ()
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
        stays = there if self.inputs.listing.whole else same
        return now, shard, stays, stays & ~same, of_shard

    def _plan(
        self,
        matching: Matching,
        draw: Draw | None,
        files: Path,
        old: _OldRows,
        rows_of_old: pa.Table,
        planner: Planner,
        names: Sequence[str],
    ) -> UpdatePlan:
        """Put the rows that stay, and the new ones of the planner, into shards. `files` is the path
        of the job's table of files."""
        before, manifest = self.before, self.before.manifest
        options = self.conversion.options
        samples = manifest.samples / max(1, manifest.inputs)  # of an input
        size = manifest.bytes / max(1, manifest.samples)
        _, shard_of, stays, changed, of_shard = old
        records = np.zeros(len(before.table), np.int64)
        np.add.at(records, shard_of[stays], before.units("records")[stays])
        touched = np.zeros(len(before.table), bool)
        touched[shard_of[~stays | changed]] = True
        shards: list[tuple[int, int, int]] = []
        splits: list[SplitPlan] = []
        parts: list[pa.RecordBatch] = []
        of_parts: list[Numbers] = []
        number_of = np.full(len(before.table), -1, np.int64)  # of a shard before in the job
        shares = [1.0] * len(names) if draw is None else np.diff([0.0, *draw.edges, 1.0]).tolist()
        for split, name in enumerate(names):
            mine = np.flatnonzero(of_shard == split).tolist()
            first, new = len(shards), planner.records[split]
            number_of[mine] = first + np.arange(len(mine))
            total = int(records[mine].sum()) + new
            # so many has a shard where all of them are converted anew
            expected = round(total * samples)
            full = max(
                1, -(-total // shards_of(expected, size, options, self.conversion.recipe.joins))
            )
            takers, ends = list[int](), [0]
            for number, shard in enumerate(mine, first):
                # Those that have lost all records of theirs, and the last one, take new ones. None
                # does where inputs are appended, whose old ones may be gone.
                room = full - int(records[shard])
                has_room = room > (1 - FULL) * full and not options.append
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
            numbers = [before.table[shard].number for shard in mine]
            after = max(numbers, default=-1) + 1
            numbers += range(after, after + more)
            kept = [NOT_KEPT if touched[shard] else shard for shard in mine] + [NOT_KEPT] * more
            shards += zip([split] * len(kept), numbers, kept, strict=True)
            splits.append(SplitPlan(name, total, round(total * shares[split]), len(kept)))
        table = pa.concat_tables([rows_of_old, pa.Table.from_batches(parts, JOB_PLAN_SCHEMA)])
        of = np.concatenate([number_of[shard_of[stays]], *of_parts])
        stay = np.flatnonzero(stays)
        of_old = np.full(len(of), -1, np.int64)
        of_old[: len(stay)] = np.where(changed[stay], -1, stay)
        order = np.argsort(of, kind="stable")
        if bool((np.diff(order) != 1).any()):
            table = table.take(pa.array(order))
        rows, of, of_old = table.combine_chunks(), of[order], of_old[order]
        split_of, number_in, before_it = np.array(shards, np.int64).reshape(-1, 3).T
        is_kept, counts = before_it != NOT_KEPT, np.bincount(of, minlength=len(shards))
        in_shard = np.zeros(len(shards), np.int64)
        np.add.at(in_shard, of, rows["records"].to_numpy())
        all_kept: list[int] = before_it[is_kept].tolist()
        known = set(before.table.names)
        rebuilt = sum(shard_name(names[split], number) in known for split, number, _ in shards)
        changes = Changes(
            *matching.counts, rebuilt - len(all_kept), len(shards) - rebuilt, len(all_kept)
        )
        job = DatasetJob(
            self.folder,
            self.inputs.bases,
            self.conversion.recipe,
            before.layout,
            tuple(splits),
            before.reading.fields,
            before.reading.by_field,
            draw,
            self.conversion.rules.shuffle,
            parts=self.inputs.parts,
            beside=before.state.digest_beside,
            digest_before=before.digest,
            kept_records=int(in_shard[is_kept].sum()),
            changes=asdict(changes),
            notices=tuple(self.inputs.listing.notices),
            warnings=tuple(self.inputs.listing.warnings),
            sample_bytes=size,
            samples_per_record=samples,
            record_seconds=(manifest.seconds or 0.0) / max(1, manifest.inputs),
        )

        def write() -> None:
            folder = job.folder
            copy_file(files, folder / FILES)
            with job_table(folder / PLAN, JOB_PLAN_SCHEMA) as plan:
                plan.write_table(rows, max_chunksize=CHUNK_ROWS)
            first = np.cumsum(counts) - counts
            columns = np.stack([split_of, number_in, first, counts, in_shard, before_it], axis=1)
            write_shards(folder, columns)
            built = np.where(is_kept, -1, np.arange(len(shards)))
            write_reused(folder, before, self.conversion.recipe, built[of], of_old)

        return UpdatePlan(job, write, matching, of_old, all_kept)

    def _rows_of_old(self, old: _OldRows, units: Units) -> pa.Table:
        """Return the rows of the plan before that stay, for the files as they are listed now."""
        now, _, stays, changed, _ = old
        plan = self.before.plan
        if not stays.all():
            plan = plan.filter(pa.array(stays))
        columns = {name: plan[name] for name, _ in UNIT_FIELDS}
        now = now[stays]
        columns["file"] = column_of(now.astype(np.int32))
        faults: list[Rejection | None] = []
        if changed.any():  # files that are one record each
            changed = changed[stays]
            sizes = plan["size"].to_numpy().copy()
            sizes[changed] = self.inputs.listing.table["size"].to_numpy()[now[changed]]
            columns["size"] = column_of(sizes)
        if units.faults and self.inputs.listing.whole:
            faults = [units.faults.get(file) for file in now.tolist()]
        reasons = why_unread(faults, len(now))
        return pa.table([*columns.values(), *reasons], schema=JOB_PLAN_SCHEMA)


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

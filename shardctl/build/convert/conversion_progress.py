"""How far a conversion is, as it is shown: the looks at its inputs, and then the work."""

from __future__ import annotations

from shardctl.build.convert.estimate import Estimate
from shardctl.build.convert.listener import Listener
from shardctl.build.convert.pace import Pace
from shardctl.build.shards.marker import WorkDone
from shardctl.system.progress import Phase, Progress


class ConversionProgress:
    """Shows how far a conversion is, by what its listener is told. `stays`: the bar of the work
    stays in the end."""

    def __init__(self, shown: Progress, stays: bool = False) -> None:
        self._shown, self._stays = shown, stays
        self._pace, self._has_begun = Pace(), False
        self._listed = shown.counter(Phase("listing", "inputs", short=True))
        self._scanned = shown.counter(Phase("scanning", "pieces of files", short=True))
        self._compared = shown.counter(Phase("comparing", "inputs", short=True))

    def listener(self) -> Listener:
        """Return the callbacks that show it, and do nothing else."""
        return Listener(
            listing=self.listing,
            announce=self.announce,
            progress=self.progress,
            comparing=self._compared,
            part=self.part,
            building=self.building,
            scanning=self._scanned,
        )

    def listing(self, inputs: int) -> None:
        """So many inputs are found."""
        self._listed(inputs)

    def announce(self, estimate: Estimate) -> None:
        """The work is planned, perhaps for the second time."""
        self._shown.close()
        self._pace, self._has_begun = Pace(), False
        self._pace.begin(estimate.records)

    def part(self, _name: str, _shards: int, records: int) -> None:
        """Only a part of it is to be done."""
        self._pace.begin(records)

    def building(self) -> None:
        """The work of this run begins."""
        self._pace.resume()
        self._has_begun = True
        self._shown.begin(
            Phase(
                unit="inputs",
                total=self._pace.records,
                first=self._pace.done.records,
                stays=self._stays,
            )
        )

    def progress(self, progress: WorkDone) -> None:
        """Some more is done, or was done before this run."""
        self._pace.add(progress)
        if self._has_begun:
            done = self._pace.done
            speed = f"{self._pace.bytes_per_s / 1e6:.1f} MB/s read"
            self._shown.report(done.records, note=f"{done.rejected:,} rejected", speed=speed)

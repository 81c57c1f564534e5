"""shardctl in PyTorch: an IterableDataset for DataLoader, and a loader that copies to a device
while the next batch is made.

    loader = shardctl.torch.Loader(ds.loader(256, shuffle=True), device="cuda")
    for batch in loader:
        ...  # a dict of tensors on the device; text and ragged fields stay lists

    for batch in Loader(ds.loader(16, shuffle=True, channels_first=True)):
        images, targets = shardctl.torch.detection(batch, label_offset=1, box_format="XYXY")  # lists of tv_tensors

Needs PyTorch (`pip install shardctl[torch]`), and `detection` torchvision.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import numpy as np

from shardctl.format.arrays import Numbers
from shardctl.system.packages import install_line, installer

try:
    import torch
    from torch.utils.data import IterableDataset as _IterableDataset
    from torch.utils.data import get_worker_info
except ImportError as error:  # pragma: no cover - the tests have it, or skip
    raise ImportError(f"shardctl.torch needs PyTorch: {install_line('torch')}") from error

from shardctl.errors import UsageError
from shardctl.images.codecs.rle import object_masks
from shardctl.loader.blocks.memory import Batch, without_views
from shardctl.loader.dataset import Dataset
from shardctl.loader.loader import Loader as BatchLoader
from shardctl.loader.mix import Mix
from shardctl.system.arguments import ELSEWHERE, whole_number
from shardctl.system.python_names import named_arguments, no_attribute, not_in_module


def __getattr__(name: str) -> Any:
    raise not_in_module(__name__, name, ("IterableDataset", "Loader", "detection", "tensors"))


def tensors(batch: Batch, tokens: Collection[str] = ()) -> dict[str, Any]:
    """Return a batch with tensors instead of arrays. They share memory with the arrays; read-only
    arrays are copied. The fields `tokens` become int64: `torch.nn.Embedding` takes no uint16 and no
    uint32.

    Raises UsageError if it is no dict, DatasetError if a shard is truncated meanwhile.
    """
    if not isinstance(batch, dict):
        raise UsageError(
            f"batches are dicts; the function of map returned a {type(batch).__name__}: return a "
            "dict, and take its fields in your loop"
        )
    own = without_views(batch)
    own |= {name: _as_int64(own[name]) for name in tokens if name in own}
    return {
        name: torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        for name, values in own.items()
    }


def _as_int64(values: Any) -> Any:
    if isinstance(values, list):
        return [_as_int64(each) for each in values]
    unsigned = isinstance(values, np.ndarray) and values.dtype.kind == "u"
    return values.astype(np.int64) if unsigned else values


def detection(
    batch: Mapping[str, Any],
    label_offset: int = 0,
    box_format: str = "XYWH",
    masks: bool = True,
    *,
    image: str = "image",
    objects: str = "objects",
    mask: str = "mask",
    device: str | torch.device | None = None,
) -> tuple[list[Any], list[dict[str, Any] | None]]:
    """Return a batch with objects as torchvision's models of detection take it: a list of images,
    and one of targets.

    It takes batches of `Loader`, of `IterableDataset` and of a shardctl loader, with
    `channels_first=True` and without `pad` for the objects. An image is a tv_tensors.Image (3, H,
    W), on `device` (None: where it is; images of several sizes are on the CPU). A target is a dict
    of tensors on the device of its image:

    - `boxes`: tv_tensors.BoundingBoxes (objects, 4) float32 of canvas_size (H, W). `box_format` is
      "XYWH", or "XYXY", which the detection models of torchvision need.
    - `labels` (objects,) int64: the category and `label_offset`. The models of torchvision need 1:
      their class 0 is the background.
    - `keypoints`: tv_tensors.KeyPoints (objects, points, 2), and `visibility` (objects, points)
      int64, if there are any.
    - `masks`: tv_tensors.Mask (objects, H, W) uint8, 1 inside the polygons or the RLE of the
      object, if there are any. `masks=False` leaves them out.
    - `area`, `iscrowd` and all other members that are numbers, and `image_id` if it is in the
      batch.
    - `mask`: tv_tensors.Mask (H, W) of that field, if it is in the batch and the sample has one.

    The target of a sample that is not annotated is None. Raises UsageError if the batch lacks a
    needed field, ImportError without torchvision.
    """
    if box_format not in _BOX_FORMATS:
        raise UsageError(f"box_format is {' or '.join(_BOX_FORMATS)}; it is {box_format!r}")
    for field in (image, objects):
        if field not in batch:
            raise UsageError(
                f"the batch has no field {field!r}; it has {', '.join(batch)}; read it without pad="
            )
    try:
        from torchvision import tv_tensors
    except ImportError as error:
        raise ImportError(
            f"shardctl.torch.detection needs torchvision: {installer()} torchvision"
        ) from error
    images, targets = [], []
    for place, (pixels, members) in enumerate(zip(batch[image], batch[objects], strict=True)):
        picture = torch.as_tensor(pixels, device=device)
        if picture.ndim != 3 or picture.shape[0] != 3:
            raise UsageError(
                f"an image is {tuple(picture.shape)}, not (3, height, width); give "
                "channels_first=True to the loader"
            )
        images.append(tv_tensors.Image(picture))
        target = None
        if members is not None:
            target = _target(tv_tensors, members, picture, label_offset, box_format, masks)
            if mask in batch and batch[mask][place] is not None:
                target["mask"] = tv_tensors.Mask(
                    torch.as_tensor(batch[mask][place], device=picture.device)
                )
            if "image_id" in batch:
                target["image_id"] = int(batch["image_id"][place])
        targets.append(target)
    return images, targets


_BOX_FORMATS = ("XYWH", "XYXY")


def _target(
    tv_tensors: Any,
    members: dict[str, Any],
    picture: torch.Tensor,
    label_offset: int,
    box_format: str,
    masks: bool,
) -> dict[str, Any]:
    """Return the target of one sample."""
    device, size = picture.device, (int(picture.shape[1]), int(picture.shape[2]))
    numbers = {name: values for name, values in members.items() if isinstance(values, np.ndarray)}
    target = {name: torch.as_tensor(values, device=device) for name, values in numbers.items()}
    if not {"bbox", "category"} <= set(target):
        raise UsageError(
            f"objects have no bbox and category, but {', '.join(members)}; choose these columns too"
        )
    boxes = target.pop("bbox")
    if box_format == "XYXY":
        boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1)
    target["boxes"] = tv_tensors.BoundingBoxes(boxes, format=box_format, canvas_size=size)
    target["labels"] = target.pop("category") + label_offset
    if "keypoints" in target:
        points = target.pop("keypoints")
        target["keypoints"] = tv_tensors.KeyPoints(points[:, :, :2].contiguous(), canvas_size=size)
        target["visibility"] = points[:, :, 2].long()
    if masks and not {"segmentation", "rle"}.isdisjoint(members):
        target["masks"] = tv_tensors.Mask(
            torch.as_tensor(object_masks(members, size), device=device)
        )
    return target


def synchronizer(device: str | torch.device) -> Callable[[], None]:
    """Return a function that waits until all work on a device is done."""
    chosen = torch.device(device)
    return (lambda: torch.cuda.synchronize(chosen)) if chosen.type == "cuda" else lambda: None


def distributed_rank() -> tuple[int, int]:
    """Return the rank and the world size of this process, (0, 1) outside of torch.distributed."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


MOST_WORKERS = 4096
"""Worker processes that a DataLoader may have."""

VERSIONS = 8
"""How often another epoch may be set before a worker that began under the first one has ended."""


class IterableDataset(_IterableDataset[dict[str, Any]]):
    """Whole batches for `torch.utils.data.DataLoader(..., batch_size=None)`, one epoch per
    iteration.

    Every iteration begins the next epoch, also after a `break`. Rank and world size come from
    torch.distributed, unless they are among the options. Worker processes divide the samples of the
    rank, each like a separate rank; because of shardctl's threads, few or no workers are needed.
    Has state_dict and load_state_dict for torchdata's StatefulDataLoader: with the same number of
    workers, each continues where it was. Tokens are int64, unless `dtype` says another type.
    """

    @named_arguments(
        "shardctl.torch.IterableDataset",
        "shardctl.torch.IterableDataset(ds, batch_size=256)",
        (Dataset, Mix),
    )
    def __init__(self, dataset: Dataset | Mix, batch_size: int, **options: Any) -> None:
        """Take a dataset or a mixture, and the arguments of its `loader`. Raises UsageError for
        wrong options."""
        usual = {
            "batch_size": batch_size,
            "processes": None,
        }  # new ones in each epoch would be slow
        self._dataset, self._options = dataset, {**usual, **options}
        # The epoch, the sample and what was skipped before it, by worker, where its next iteration
        # begins: in memory that all processes share, so that `set_epoch` reaches workers that live
        # on, and a new worker goes on after the one that had its number. What is set is a new
        # version of them: a worker that began before goes on with those of its own.
        self._versions = torch.zeros(VERSIONS, MOST_WORKERS, 3, dtype=torch.int64).share_memory_()
        self._version = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._at = 0
        self._born: tuple[int, Numbers] | None = None
        _ALIVE.add(self)
        self._running: BatchLoader | None = None
        self._is_over = False
        self._place = distributed_rank()
        self._loader()

    def __len__(self) -> int:
        """Return the number of batches in an epoch.

        The main process of a DataLoader does not know the number of workers: with N workers there
        may be up to N - 1 batches more, because each worker ends with its own smaller batch. With
        `remainder="drop"` there are never more.
        """
        return len(self._loader())

    def __repr__(self) -> str:
        """Return what it reads, for display."""
        return f"<shardctl.torch.IterableDataset: {self._loader()!r}>"

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch: its rest after `load_state_dict` with a state of it,
        else the whole epoch.

        Each iteration increases the epoch by one, also in worker processes. What is set reaches
        them too, with `persistent_workers` as without. Raises UsageError for a negative epoch.
        """
        epoch, places = whole_number("epoch", epoch, 0), self._begin_version()
        if places[0][1]:
            self._continued().set_epoch(epoch)  # warns if a rest is left
        places[places[:, 0] != epoch] = torch.tensor([epoch, 0, 0])
        self._running = None

    def __getstate__(self) -> dict[str, Any]:
        """Give a copy, which may be that of a worker, the places of now."""
        return {**self.__dict__, "_born": self._current()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Share the memory of a copy, too."""
        self.__dict__ = state
        self._versions.share_memory_()
        self._version.share_memory_()
        _ALIVE.add(self)

    def _current(self) -> tuple[int, Numbers]:
        """Return the version of now, and a copy of its rows: an array, which is given to other
        processes by value."""
        version = int(self._version)
        return version, self._versions[version % VERSIONS].numpy().copy()

    def _begin_version(self) -> torch.Tensor:
        """Return the rows of a new version, which begin as those of now; in a worker its own rows
        of the version it has."""
        if get_worker_info() is None:
            version, rows = self._current()
            self._versions[(version + 1) % VERSIONS] = torch.from_numpy(rows)
            self._version += 1
            self._at, self._born = version + 1, None
        return self._places()

    def _places(self) -> torch.Tensor:
        """Return the rows that this worker writes; all are written in each iteration, however many
        workers there are."""
        return _own(self._versions[self._at % VERSIONS])

    def _continued(self) -> BatchLoader:
        """Return the loader of this process, at the place where the next iteration begins."""
        loader = self._loader()
        epoch, samples, skipped = self._places()[0].tolist()
        loader.load_state_dict(
            {**loader.state_dict(), "epoch": epoch, "samples": samples, "skipped": skipped}
        )
        return loader

    def _loader(self) -> BatchLoader:
        """Return the loader of this process: for its rank, and in a worker of a DataLoader for its
        part of the rank."""
        loader = self._dataset.loader(**self._options)
        loader.options.check_keeping("a DataLoader")
        worker = get_worker_info()
        loader.assign(*(self._place if worker else distributed_rank()))
        if worker is None:
            return loader
        rank, world_size = loader.options.rank_and_size()
        place = {
            "rank": rank * worker.num_workers + worker.id,
            "world_size": world_size * worker.num_workers,
        }
        if world_size == 1:
            # the workers of one rank need not get equally many batches
            place["remainder"] = loader.options.rule
        return self._dataset.loader(**{**self._options, **place})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the batches of the next epoch as dicts of tensors."""
        self._at = int(self._version)
        # another process may have set another epoch since this one began
        if self._born is not None:
            self._at, rows = self._born
            self._places()[:], self._born = torch.from_numpy(_own(rows)), None
        loader = self._running = self._continued()
        self._is_over, following = False, loader.next_epoch + 1
        self._begin_next_at(following)  # now, and not with the first batch: so do all workers
        return self._batches(loader, following)

    def _begin_next_at(self, epoch: int, samples: int = 0, skipped: int = 0) -> None:
        self._places()[:] = torch.tensor([epoch, samples, skipped])

    def _batches(self, loader: BatchLoader, following: int) -> Iterator[dict[str, Any]]:
        for batch in loader:
            # with `repeat`; else `set_epoch` may have said another one meanwhile
            if loader.next_epoch != following:
                following = loader.next_epoch
                self._begin_next_at(following)
            yield tensors(batch, loader.stream.tokens_as_stored())
        self._is_over = get_worker_info() is None

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the iteration, as `Loader.state_dict` of shardctl.

        After the last batch, it is the end of the epoch, until the iteration has ended. In a worker
        of a DataLoader it stays there: other workers may have batches of this epoch left, and each
        one continues with its rest.
        """
        if self._running is None:
            return self._continued().state_dict()
        state = self._running.state_dict()
        if not self._is_over and state["epoch"] == self._places()[0][0]:
            state |= {"epoch": state["epoch"] - 1, "samples": len(self._running.stream)}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state at the next iteration. Raises UsageError for the state of another
        dataset or order."""
        self._loader().load_state_dict(state)
        place = torch.tensor([state["epoch"], state["samples"], state.get("skipped", 0)])
        self._begin_version()[:] = place
        if self._born is not None:
            _own(self._born[1])[:] = place.numpy()
        self._running = None


_Rows = TypeVar("_Rows", torch.Tensor, Numbers)


def _own(rows: _Rows) -> _Rows:
    worker = get_worker_info()
    return rows if worker is None else rows[worker.id :: worker.num_workers]


_ALIVE: WeakSet[IterableDataset] = WeakSet()


def _before_fork() -> None:
    """Have a worker that is forked now begin where its parent is now, however late it begins."""
    for each in list(_ALIVE):
        each._born = each._current()


def _after_fork() -> None:
    for each in list(_ALIVE):
        each._born = None


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)


_OF_LOADERS = {
    name: f"write shardctl.torch.Loader(ds.loader({name}=…))"
    for name in inspect.signature(Dataset.loader).parameters
}


class Loader:
    """Batches of a shardctl loader as tensors on a device.

    If torch.distributed is initialised, only this rank's part, unless the loader was given a rank
    and a world size. With a CUDA device, the loader's threads copy each batch into pinned memory.
    From there it is copied to the device on a separate stream, while the previous batch is in use.
    Tokens are int64, unless `dtype` of the loader says another type. The other methods (len,
    state_dict, set_epoch, stats) work like those in the shardctl loader.
    """

    if not TYPE_CHECKING:  # type checkers say themselves what is not there
        __getattr__ = no_attribute

    @named_arguments(
        "shardctl.torch.Loader",
        "shardctl.torch.Loader(ds.loader(256))",
        BatchLoader,
        {**ELSEWHERE, **_OF_LOADERS},
    )
    def __init__(self, loader: BatchLoader, device: str | torch.device = "cpu") -> None:
        """Take a loader that `Dataset.loader` or `Mix.loader` returned."""
        self._loader = loader
        self.device = torch.device(device)
        self._state: dict[str, Any] | None = None

    @property
    def loader(self) -> BatchLoader:
        """The shardctl loader, with the rank of this process."""
        # at each use: the process group may be initialised after the loader was made
        self._loader.assign(*distributed_rank())
        return self._loader

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.loader)

    def __repr__(self) -> str:
        """Return the device and the shardctl loader, for display."""
        return f"<shardctl.torch.Loader on {self.device}: {self.loader!r}>"

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the training loop: a batch that is being copied to the device does
        not count."""
        return self.loader.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state at the next iteration."""
        self._state = None
        self.loader.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch: its rest after `load_state_dict` with a state of it,
        else the whole epoch."""
        self._state = None
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the batches of the next epoch as dicts of tensors on the device."""
        self._state = None
        if self.device.type != "cuda":
            tokens = self._loader.stream.tokens_as_stored()
            for batch in self.loader:
                yield _changed(tensors(batch, tokens), lambda value: value.to(self.device))
            return
        yield from self._overlapped()

    def _overlapped(self) -> Iterator[dict[str, Any]]:
        stream = torch.cuda.Stream(self.device)
        coming: tuple[dict[str, Any], torch.cuda.Event, dict[str, Any]] | None = None
        pinned = partial(_pinned, self._loader.stream.tokens_as_stored())
        for batch in self.loader.map(pinned):
            begun = (*self._copy(batch, stream), self.loader.state_dict())
            if coming is not None:
                yield self._arrived(coming)
            coming = begun
        if coming is not None:
            yield self._arrived(coming)
        # not after a `break`: the batch that was being copied was never returned
        self._state = None

    def _copy(
        self, batch: dict[str, Any], stream: torch.cuda.Stream
    ) -> tuple[dict[str, Any], torch.cuda.Event]:
        """Begin to copy a batch in pinned memory to the device."""
        with torch.cuda.stream(stream):
            moved = _changed(batch, lambda value: value.to(self.device, non_blocking=True))
            done = torch.cuda.Event()
            done.record(stream)
        return moved, done

    def _arrived(
        self, coming: tuple[dict[str, Any], torch.cuda.Event, dict[str, Any]]
    ) -> dict[str, Any]:
        """Make the training loop's stream wait for a copy, and record its use of the tensors for
        the allocator."""
        moved, done, self._state = coming
        current = torch.cuda.current_stream(self.device)
        current.wait_event(done)
        for value in moved.values():
            if isinstance(value, torch.Tensor):
                value.record_stream(current)
        return moved

    def stats(self) -> Any:
        """Return the statistics of the shardctl loader."""
        return self.loader.stats()


def _pinned(tokens: Collection[str], batch: Batch) -> dict[str, Any]:
    """Return a batch with tensors in pinned memory in place of arrays."""
    return _changed(tensors(batch, tokens), _pinned_copy)


def _pinned_copy(value: torch.Tensor) -> torch.Tensor:
    """Return a copy in pinned memory. The thread that calls this makes it.

    `pin_memory()` divides each copy among threads of PyTorch, one for each core. Beside 16 threads
    of a loader on 16 cores that took 9 ms for 38 MB, and gave 26,000 raw images per second. Copies
    like this gave 126,000 (2026-11-27).
    """
    copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    np.copyto(copy.numpy(), value.numpy())
    return copy


def _changed(
    batch: dict[str, Any], change: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, Any]:
    return {n: change(v) if isinstance(v, torch.Tensor) else v for n, v in batch.items()}

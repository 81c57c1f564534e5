"""Words of other tools for opening, reading and loading a dataset in Python, with what to write in their place."""

from __future__ import annotations

OPEN_ARGUMENTS = {
    "columns column": 'choose columns of batches: ds.loader(256, columns=["image"])',
    "shuffle batch-size bs batch seed rank world-size num-workers": "the loader takes it: ds.loader(256, shuffle=True, seed=0)",
    "transform transforms map": "give the options of the loader (crop, flip, normalize), or use loader.map(function)",
    "streaming remote url": "path may be a URL, and is then streamed; cache= names the folder of its copy",
    "cache-dir local": "use cache=, a folder for what is read from a store",
    "subset name": "use split=",
    "version revision": "use generation=, the number of a state that was kept",
}
"""Answers to arguments of other tools for opening a dataset."""

LOADER_ARGUMENTS = {
    "num-workers workers worker num-threads n-workers jobs": "use threads=4, or processes=4 beyond a few cores",
    "bs batch": "use batch_size=256",
    "random-crop": 'use crop=224, crop_from="random"',
    "hflip horizontal-flip random-flip": "use flip=0.5",
    "mean std": 'use normalize={"image": (mean, std)}',
    "epochs num-epochs": "use repeat=10, or iterate again: each iteration is the next epoch",
    "collate-fn collate transform transforms map-fn": "batches are dicts of arrays: change them in the loop",
    "pin-memory device": 'shardctl.torch.Loader(loader, device="cuda") copies batches to a GPU',
    "sampler batch-sampler order": "shuffle=True, seed, rank and world_size decide the order",
    "pipelines": "use crop=, flip=, normalize=, dtype=, or loader.map(function)",
    "distributed": "use rank= and world_size=; shardctl.torch.Loader takes them from torch.distributed",
    "num-replicas num-shards": "use world_size=",
    "worker-init-fn multiprocessing-context persistent-workers": "there are no workers to set up: threads read and decode",
    "prefetch-factor buffer-size": "use prefetch=4",
}
"""Answers to arguments of other loaders."""

DATASET_ATTRIBUTES = {
    "shuffle": "shuffle in the loader: ds.loader(256, shuffle=True, seed=0)",
    "batch batched iter as_numpy_iterator to_iterable_dataset dataloader to_tf_dataset with_format set_format with_transform": (
        "ds.loader(256) gives batches of arrays; shardctl.torch, .jax and .tensorflow adapt it"
    ),
    "map with_column add_column": "ds.loader(256).map(function) changes batches; `convert --step` changes the dataset for good",
    "rename_column rename_columns rename": "convert(…, fields={'new': 'old'}) renames, and export(…, rename=…)",
    "remove_columns select_columns drop": "ds.loader(256, columns=[…]) reads some columns",
    "push_to_hub upload": 'shardctl.export("out", "files", to="parquet"), then `hf upload`',
    "unique value_counts": 'shardctl.inspect("out", stats=True) counts; ds.take(range(len(ds)), columns=["label"]) reads',
    "sort order_by": "the order is that of the inputs; ds.take(indices) gives any other",
    "flatten cast cast_column class_encode_column": "change it in convert: --fields, --schema, --transform",
    "cache": "ds.loader(256, preload=True) loads all; shardctl.open(url, cache=DIR) keeps what is read of a store",
    "close": "nothing has to be closed",
    "select take_while get gather": "ds.take([0, 5]) gives samples as a batch, and ds[10:20] some of the dataset",
    "skip head": "use a slice: ds[10:], or ds.limit(10)",
    "where query filter_by": 'use ds.filter("label == 3")',
    "features column_names columns fields dtypes": "ds.schema has the columns, and ds.roles says what they are",
    "num_rows num_samples size shape count": "use len(ds)",
    "to_pandas to_arrow to_parquet to_csv to_json save_to_disk save": (
        'shardctl.export("out", "files", to="parquet") writes a dataset for other tools'
    ),
    "train_test_split split_dataset random_split": "splits are made by convert: split={'train': 0.9, 'val': 0.1}",
    "shard": "ds.loader(256, rank=0, world_size=8) gives each process its part",
    "repeat": "ds.loader(256, repeat=10)",
    "prefetch": "ds.loader(256, prefetch=4)",
    "concatenate zip interleave": "shardctl.mix([a, b], [0.5, 0.5]) mixes datasets",
    "info description metadata stats": 'ds.manifest says how it was made; shardctl.inspect("out", stats=True) counts',
    "targets labels": 'ds.take(range(len(ds)), columns=["label"]) reads all labels',
    "imgs images samples data text texts": "iterate: for sample in ds, or for batch in ds.loader(256)",
    "decode": "images are decoded; ds.loader(256, decode=False) gives their bytes",
    "to_tuple": 'samples and batches are dicts: batch["image"], batch["label"]',
    "transform transforms": "give the options of the loader (crop, flip, normalize), or use loader.map(function)",
    "num_classes": "use len(ds.classes)",
    "class_to_idx": "ds.classes[n] is the name of label n",
    "keys": 'ds.take(range(10), columns=["key"]) reads the keys of samples',
    "splits": "ds.manifest.splits; shardctl.open(path, split=...) opens one",
}
"""Answers to attributes of other tools' datasets."""

LOADER_ATTRIBUTES = {
    "dataset": "keep the dataset that the loader was made of",
    "batch_size drop_last num_workers": "loader.options has it",
    "sampler batch_sampler": "loader.set_epoch(n) begins at an epoch; shuffle, rank and world_size decide the order",
    "reset restart": "iterate again, or loader.set_epoch(0)",
    "next get_next": "next(iter(loader)) gives a batch",
    "to cuda device": 'shardctl.torch.Loader(loader, device="cuda") copies batches to a GPU',
    "shutdown": "a loader ends its threads itself; nothing has to be closed",
}
"""Answers to attributes of other tools' loaders."""

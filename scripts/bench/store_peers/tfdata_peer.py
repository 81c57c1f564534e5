"""tf.data: TFRecord files from S3, with the file system of tensorflow-io.

python3 -m venv .interop/tensorflow-io
.interop/tensorflow-io/bin/pip install tensorflow-cpu==2.16.2 tensorflow-io==0.37.1 'numpy<2'
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

SHARDS = 16


def make(images: Path, folder: Path) -> None:
    import tensorflow as tf

    folder.mkdir()
    paths = sorted(images.iterdir())
    for shard in range(SHARDS):
        with tf.io.TFRecordWriter(str(folder / f"{shard:05d}.tfrecord")) as writer:
            for path in paths[shard::SHARDS]:
                writer.write(path.read_bytes())


def read(address: str, bucket: str) -> None:
    os.environ.update(S3_ENDPOINT=address, S3_USE_HTTPS="0", S3_VERIFY_SSL="0")
    import tensorflow as tf
    import tensorflow_io  # noqa: F401 - it is the file system of s3://

    began = time.perf_counter()
    files = tf.data.Dataset.from_tensor_slices(
        [f"s3://{bucket}/tfdata/{shard:05d}.tfrecord" for shard in range(SHARDS)]
    )
    records = files.shuffle(SHARDS).interleave(
        lambda path: tf.data.TFRecordDataset(path, buffer_size=8 << 20),
        cycle_length=SHARDS,
        num_parallel_calls=SHARDS,
    )
    images = records.shuffle(1000).map(
        lambda data: tf.io.decode_and_crop_jpeg(data, [16, 16, 224, 224]),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    count = sum(len(batch) for batch in images.batch(256).prefetch(tf.data.AUTOTUNE))
    print(count, time.perf_counter() - began, flush=True)
    os._exit(0)  # the file system ends the process with SIGABRT when it is torn down


if __name__ == "__main__":
    make(Path(sys.argv[2]), Path(sys.argv[3])) if sys.argv[1] == "make" else read(*sys.argv[2:4])

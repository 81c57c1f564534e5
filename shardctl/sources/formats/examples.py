"""tf.train.Example and tf.train.SequenceExample, parsed by protobuf with no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import itemgetter
from typing import Any

import numpy as np

from shardctl.errors import InstallError, Rejection
from shardctl.sources.format_table import TFRECORD_NEEDS
from shardctl.sources.formats.found_values import Record
from shardctl.sources.values import Feature

_NOT_AN_EXAMPLE = (
    "its data is not a tf.train.Example, which is what TFRecord files of datasets "
    "hold; write it as one"
)


@cache
def messages() -> Any:
    """Return the message class that parses both. Raises InstallError.

    A SequenceExample has its `context` where an Example has its `features`, field 1 of the same
    type, so that one class reads both (tensorflow/core/example/example.proto and feature.proto).
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise InstallError(TFRECORD_NEEDS.message) from None
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="shardctl/example.proto", package="shardctl", syntax="proto3"
    )

    def message(name: str, *fields: Any) -> Any:
        made = file.message_type.add(name=name)
        for number, (of_name, label, type_, type_name) in enumerate(fields, 1):
            made.field.add(
                name=of_name, number=number, label=label, type=type_, type_name=type_name
            )
        return made

    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    message("BytesList", ("value", many, field.TYPE_BYTES, None))
    message("FloatList", ("value", many, field.TYPE_FLOAT, None))
    message("Int64List", ("value", many, field.TYPE_INT64, None))
    kinds = (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List"))
    feature = message(
        "Feature", *((name, one, field.TYPE_MESSAGE, f".shardctl.{type_}") for name, type_ in kinds)
    )
    feature.oneof_decl.add(name="kind")
    for part in feature.field:
        part.oneof_index = 0
    message("FeatureList", ("feature", many, field.TYPE_MESSAGE, ".shardctl.Feature"))
    for name, of in (("Features", "Feature"), ("FeatureLists", "FeatureList")):
        entry = f"{'Feature' if of == 'Feature' else 'FeatureList'}Entry"
        inside = message(name, (_SNAKE[of], many, field.TYPE_MESSAGE, f".shardctl.{name}.{entry}"))
        pair = inside.nested_type.add(name=entry)
        pair.options.map_entry = True
        pair.field.add(name="key", number=1, label=one, type=field.TYPE_STRING)
        pair.field.add(
            name="value", number=2, label=one, type=field.TYPE_MESSAGE, type_name=f".shardctl.{of}"
        )
    message(
        "Example",
        ("features", one, field.TYPE_MESSAGE, ".shardctl.Features"),
        ("feature_lists", one, field.TYPE_MESSAGE, ".shardctl.FeatureLists"),
    )
    # not the common one, in which TensorFlow may have its own
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shardctl.Example"))


_NAME = itemgetter(0)

_SNAKE = {"Feature": "feature", "FeatureList": "feature_list"}


def example_parser() -> Callable[[bytes], Record]:
    """Return the function that gives the features of an Example, or of a SequenceExample. Raises
    InstallError.

    It raises Rejection where the bytes are neither.
    """
    class_ = messages()
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    def parse(data: bytes) -> Record:
        try:
            example = class_.FromString(data)
        except DecodeError:
            raise Rejection("decode", "not-an-example", _NOT_AN_EXAMPLE) from None
        if len(UnknownFieldSet(example)):
            raise Rejection("decode", "not-an-example", _NOT_AN_EXAMPLE)
        # Sorted: the order of a map differs from process to process.
        record: Record = {
            name: _values(feature)
            for name, feature in sorted(example.features.feature.items(), key=_NAME)
        }
        for name, steps in sorted(example.feature_lists.feature_list.items(), key=_NAME):
            if name in record:
                message = (
                    f"it has {name!r} both in its context and in its lists; give one of "
                    "them "
                    "another name"
                )
                raise Rejection("decode", "repeated-field", message)
            record[name] = [_values(feature) for feature in steps.feature]
        return record

    return parse


def _values(feature: Any) -> Feature | None:
    """Return the values of a feature, None if it does not even say of which kind they are."""
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    values = getattr(feature, kind).value
    if kind == "bytes_list":
        return Feature(list(values))
    return Feature(np.array(values, np.float32 if kind == "float_list" else np.int64))

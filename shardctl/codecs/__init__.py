"""Images as bytes, and back: the only place that knows an imaging library."""

from shardctl.codecs import backend as backend  # first: where the imaging package is broken, it says so in a sentence

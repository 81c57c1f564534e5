"""Images as bytes, and back: decoded, resampled, measured, drawn on. With `pixels`, all that is
done to their pixels."""

# first: where the imaging package is broken, it says so in a sentence
from shardctl.images.codecs import backend as backend

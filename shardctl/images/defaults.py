"""Names of image files, limits where a recipe gives no others, and the words that a person may say
of annotations. Nothing is imported: the command line shows them."""

from __future__ import annotations

MAX_PIXELS = 100_000_000
"""Largest image that is decoded, width x height. 100 million pixels need 300 MB as RGB."""

KEPT_SHARE = 0.1
"""The part of an object's area that must be visible for it to be kept, unless a recipe says
otherwise."""

CENTRE = "center"
"""The word in its place: keep an object if the centre of its box is still in the image."""

SUFFIXES = frozenset(
    (
        ".jpg,.jpeg,.jpe,.jfif,.png,.apng,.webp,.gif,.bmp,.dib,.tif,.tiff,.ppm,.pgm,.pbm,.pnm,"
        ".pfm,.jp2,.j2k,.jpc,.jpf,.jpx,.avif,.tga,.ico,.mpo,.qoi"
    ).split(",")
)
"""File names that are taken for images of these formats."""

OTHER_SUFFIXES = frozenset(
    (
        ".eps,.ps,.psd,.dds,.fli,.flc,.sgi,.rgb,.bw,.pcx,.blp,.fits,.fit,.cur,.pkm,.nie,.icns,"
        ".hdr,.xpm,.xbm,.wmf,.emf,.wbmp,.msp,.iff,.heif,.heic,.dcm,.xwd,.svg,.exr,.jxl,.pict,"
        ".pct,.ff,.raw,.cr2,.nef,.dng,.jls,.im,.spider,.dcx,.ftc,.ftu,.gbr,.p7,.pxr,.ras,.im1,"
        ".mng,.fpx,.wal,.mic,.gd,.svgz,.bpg"
    ).split(",")
)
"""File names of images that are not read: they become rejects, so that none is missing silently."""

KNOWN_SUFFIXES = SUFFIXES | OTHER_SUFFIXES

BOXES = ("keep", "clip", "drop")
"""What is done about boxes that reach outside of their image."""

FRAMES = ("auto", "stored", "upright")
"""Of which image annotations are: as it is stored, or as EXIF turns it."""

TASKS = ("detect", "segment", "pose", "obb")
"""What the lines of YOLO files are."""

"""The recipe, and what it does to samples between source and shard: small, pure, and handed its
randomness.

The steps of images work on a `Picture` (picture.py). Those that only say which part is wanted, and
how large, compose: the pixels are resampled once (images/geometry.py, images/codecs/resampling.py).
A *filter* rejects images and changes none. A *sample* transform is a person's own function, called
on the decoded sample; a *group* transform, a model, is called on many of them. A *batch* transform
works on Arrow batches of records of text and tables.

Names and settings are those of torchvision's transforms.v2, in lower case. What can be certain or
random has a `p`.
"""

"""Random access to the samples of a dataset: sample numbers in, columns of a batch out. docs/loader.md."""

"""Raw inputs: files are found (walk), cut into units and records (formats), labelled and
annotated."""

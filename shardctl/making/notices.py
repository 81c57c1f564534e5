"""The notices and warnings of a conversion: when each is given, and its sentence. A new one is one
more row."""

from __future__ import annotations

_SENTENCES = {
    # --- the list of the inputs ---
    # the kind is text, and there are files of tables
    "tables-left-out": "left out: {files}, which --kind table converts",
    # a link leads nowhere, or a folder may not be entered
    "unreachable": "left out: {files}, which cannot be reached",
    # --lenient-labels, and a labels file names files that are not there
    "rows-skipped": "{what}; skipped",
    # --lenient-labels, and a labels file does not name all inputs
    "inputs-without-row": "{what}; their columns are empty",
    # --- splits ---
    # a labels file has a column split, and --split decides otherwise
    "column-split-kept": "{files}: the column split stays a column; --split {rule} decides the "
    "splits",
    # records have a field split, and folders or files decide the splits
    "field-split-kept": "the field split stays a field, and does not decide the splits",
    # --split is auto, and something names splits
    "splits-found": "{what} are the splits: {names} (--split none makes one of all inputs)",
    # warning: --split train=0.9,… and there are splits already
    "splits-divided": "{what}, but --split {rule} divides all inputs in another way",
    # --- labels and columns ---
    # a field label that is no text, or has too many values
    "label-not-a-class": "the field label names no classes (not always a string, or over "
    "100,000 values)",
    # --labels auto, and all folders have one name
    "one-folder": "all folders are called {name}, which is not a class; --labels folder makes it one",
    # --labels auto, and the folders are named as splits
    "folders-of-splits": "{names} are names of splits, not classes; --labels folder makes them "
    "classes",
    # a/dog and b/dog
    "same-folders": "folders of the same name in different places are one class: {names}",
    # --labels folder, and some inputs are in none
    "no-class-folder": "{inputs}: no label",
    # a step joins records
    "joined-left-out": "left out: {names}, as {step} makes samples of several records, which may "
    "differ in them",
    # records have a field of a name that shardctl gives itself
    "kept-under-another-name": "shardctl makes {names} itself: those of the records are kept as "
    "{others}",
    # tars: a.left.jpg, a.right.jpg
    "images-as-bytes": "{names}: images by name, kept as bytes, as samples may lack some",
    # tables with structs of bytes and path
    "columns-of-images": "{names}: columns of images; --image-field none keeps them as they are",
    # some of the sources are exports, and others are not
    "roles-left-out": "the role of {names} is left out: only some sources have it in shardctl.json",
    # --schema names fewer fields than the records have
    "fields-left-out": "left out: the fields {names}, which the schema does not name",
    # --schema names fields that the first records do not have
    "fields-missing": "{names} of the schema: empty, as the first records have no such field",
    # --labels none, and folders such as year=2024
    "partitions-left-out": "left out: {columns}, which only the folders of {files} have",
    # a column beside the image is a mask by its name or type
    "masks-by-name": "{names}: masks, and {moved} with the image; --unmoved {option} keeps them "
    "as they are",
    # the header of a CSV file begins with a comma
    "unnamed-column": "the first column has no name, as in files of pandas: it is kept as "
    "{name}; --fields names those to keep",
    # a CSV file whose only name has a mark that may separate several
    "one-column": "there is one column, {column}; if it is several, use --delimiter {mark}",
    # --encoding detect
    "encodings": "encodings that were detected: {found}; --encoding names one for all",
    # --duplicates, or a step deduplicate
    "duplicates": "{dropped:,} of {count} are duplicates of others, and {what} ({rule})",
    # texts that cannot be read, where texts are compared
    "not-compared": "{records} could not be compared with others (deduplicate): {why}",
    # --- an update ---
    # warning: splits are drawn by file and number, and files have changed, gone and come
    "splits-may-change": "records of these files may now be in another split ({changed:,} "
    "changed, {removed:,} gone, {added:,} new), which their file and "
    "number decide; --key-field keeps it",
    # warning: pruned records of a file that has changed or gone
    "pruned-may-be-back": "{records} of {files} had been pruned, and may be back, since the "
    "file has changed or gone; prune again",
    # warning: most of the new inputs were rejected
    "new-rejected": "{what}{why}. rejects.jsonl lists all of them",
    # --- the finished dataset ---
    # GIF, TIFF
    "several-frames": "{images} with several frames or pages: the first is taken{advice}",
    # records without the field of labels
    "without-label": "{missing:,} of {samples} without a label",
    # a crop
    "objects-cut-off": "{cut:,} of {objects} were cut off ({rule})",
    # a commit leaves much for readers of earlier generations
    "earlier-generations": "{size} of earlier generations stay on the disk for their readers; "
    "--keep-generations 0 frees them",
    # up to date, but for the versions
    "other-versions": "the dataset was made by other versions ({changes}); --overwrite converts it "
    "again with these",
    # warning: more than 5 % could not be converted, or more than half were filtered
    "many-rejects": "{what}. Most frequent ({count:,}): {reason}, for instance {key}: "
    "{message}. rejects.jsonl lists all of them; --max-rejects 5% makes this an "
    "error",
    # warning: a split of which every input was rejected
    "empty-split": "no sample is in the split {names}",
    # warning: --key-field
    "repeated-keys": "{are} the key of another one, for instance {key}; --key-field takes a "
    "field with different values",
}


def notice(which: str, **values: object) -> str:
    """Return the sentence of a notice about these values."""
    return _SENTENCES[which].format(**values)

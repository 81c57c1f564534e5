"""The notices, warnings and refusals of a conversion: when each is given, and its sentence. A new
one is one more row."""

from __future__ import annotations

_SENTENCES = {
    # --- the list of the inputs ---
    # the kind is text, and there are files of tables
    "tables-left-out": "left out: {files}, which --kind table converts",
    # images are changed, and nobody said how they are to be stored
    "encoded-again": "stored as {store}, which loses a little of each image; --store png or raw keeps "
    "the pixels",
    # the number of samples of a shard was meant, perhaps
    "small-shards": "shards of {size}: --shard-size is in bytes, and --samples-per-shard counts "
    "samples",
    # a link leads nowhere, or a folder may not be entered
    "unreachable": "left out: {files}, which cannot be reached",
    # --lenient-labels, and a labels file names files that are not there
    "rows-skipped": "{what}; skipped",
    # --lenient-labels, and a labels file does not name all inputs
    "inputs-without-row": "{files}: no row for {count:,} of {inputs} ({names}); their columns are "
    "empty",
    # refusal: sources without a file, or with empty ones alone
    "no-files": "{sources}: holds no files, or only empty ones; nothing to convert",
    # refusal: the source is an empty file
    "no-records": "{sources}: has no records; nothing to convert",
    # refusal: a labels file is given as the source too
    "labels-as-source": "{files}: a labels file, and the only source; give the folder of the images "
    "as the source, or leave out --labels",
    # refusal: the source is a dataset
    "a-dataset-already": "{sources}: is a dataset of shardctl already (`shardctl inspect` shows "
    "it); to make it again, give its sources",
    # refusal: no file is an input
    "no-inputs": "{sources}: no {kind}{among}; `shardctl help inputs` has the endings of all files "
    "that are read",
    # refusal: no file is an input, and most are tables
    "tables-alone": "{sources}: no {kind}{among}; --kind table converts tables",
    # refusal: no file is an input, and most are archives
    "archives-alone": "{sources}: no {kind}{among}; unpack archives first, then convert the folder",
    # refusal: no file is an input, and most are sheets, or objects of a program
    "objects-alone": "{sources}: no {kind}{among}; save them as CSV or Parquet, or read them in Python "
    "and use shardctl.write",
    # refusal: one of several sources has no inputs
    "idle-source": "{why}. Leave this source out",
    # refusal: --format names another format than the files have
    "none-of-the-format": "{sources}: holds no {format}; --format is the format of the inputs",
    # refusal: photos and tables
    "mixed-files": "the sources mix files of many records ({many}) and of one each ({one}), which "
    "have other fields; convert them into two datasets",
    # refusal: two sources have files of the same path
    "same-paths": "{keys} twice, among them {names}: keys are paths below their source; give the "
    "folder that contains all sources",
    # in the next two and in rows-skipped: rows of a labels file name no inputs
    "no-input-for": "{files}: no input for {count:,} of {rows} ({names}): not there, or of another "
    "split",
    # refusal: a labels file names files that are not there
    "rows-refused": "{what}; fix the file, or use --lenient-labels to skip such rows",
    # refusal: a labels file names no file that is there
    "no-row-of-an-input": "{what}; write the paths of the inputs from the source on, as {inputs}",
    # refusal: a labels file does not name all inputs
    "no-row-for": "{files}: no row for {count:,} of {inputs} ({names}); add rows, or use "
    "--lenient-labels to leave them empty; --labels folder or none leaves the file out",
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
    # warning: --split train=0.9,… and a tar has train/ and val/
    "splits-in-tars-divided": "members of the tars lie in folders named as splits ({names}), but "
    "--split {rule} divides all inputs in another way",
    # refusal: --split a/b=1
    "split-name": "split name {name!r} must be made of letters, digits, _ and .",
    # refusal: --split half
    "split-form": "split {text!r} is not of the form train=0.9,val=0.1, and not one of {modes}",
    # refusal: --split a=0.5,a=0.5
    "split-named-twice": "split {text!r} names a split twice",
    # refusal: --split with more shares than a byte can number
    "too-many-shares": "split: {count} are too many; there can be {most}",
    # refusal: --split train=0.9,val=0.2
    "sum-of-shares": "split {text!r}: the shares must be over 0 and add up to 1",
    # refusal: a column split or lists leave some inputs out
    "no-split": "{told} names no split for {inputs}; add it, or use another --split, such as none",
    # refusal: --split folder, and inputs that lie right in the source
    "no-folder-of-split": "--split folder: some inputs are in no folder that could name their "
    "split",
    # refusal: the sources train and val have folders train and val
    "sources-and-folders": "both the sources ({sources}) and what is in them ({held}) are named as "
    "splits; choose --split source or folder",
    # refusal: the sources are train and others
    "one-source-of-split": "the source {named} is named as a split, and {others} is not; use "
    "--split source or --split none",
    # refusal: lists such as train.txt name files that are not there
    "no-line-of-list": "no line of {lists} is the name of an input; write one a line, or use "
    "--split none",
    # in the next two: one folder or file
    "named-as-split": "{names} is named as a split",
    # the same: several
    "named-as-splits": "{names} are named as splits",
    # refusal: train, val, and inputs that lie beside them
    "beside-splits": "{sources}: {splits}, but {inputs} {are} in no folder; move such files into "
    "one, or use --split none",
    # refusal: train, val and others
    "folders-beside-splits": "{sources}: {splits}, but these beside them are not: {others}. Use "
    "--split folder (each is a split) or --split none, or move the others away",
    # refusal: a/train and a/val, and other folders
    "splits-further-down": "folders or files further down are named as splits ({example}); give "
    "the folder right above them as the source, or use --split none",
    # refusal: a tar has train/ and val/
    "splits-in-tars": "members of the tars lie in folders named as splits ({names}), and a tar is "
    "in one split. Unpack the tars, make one of each split, or use --split none",
    # refusal: a column split or lists put inputs of train/ into val
    "split-and-place-differ": "{told} puts {inputs} into another split than the {placed} "
    "({names}); choose --split {by} or --split {placed}",
    # refusal: --split column, and no labels file has one
    "no-column-split": "--split column: there is no labels file with a column called split",
    # refusal: --split column, and it has numbers
    "column-split-of-type": "{files}: its split is {type}, not names; --split none keeps the "
    "column",
    # refusal: --split lists, and there are none
    "no-lists": "--split lists: no data.yaml, COCO files or lists such as train.txt name the "
    "splits",
    # refusal: two lists name the same inputs
    "in-two-splits": "{told}: {inputs} in two splits, {one} and {other}; correct it, or use "
    "--split none",
    # refusal: --split folder, and a folder is called a+b
    "no-names-of-splits": "--split {by}: {names} cannot name a split: the name of a split is made "
    "of letters, digits, _ and .; rename, or use --split none",
    # refusal: --split folder, and there are more folders than a byte can number
    "too-many-splits": "--split {by}: {count:,} are too many; there can be {most:,}",
    # refusal: --group names no column of the labels file
    "no-column-of-groups": "--group {name}: no labels file has this column ({columns}), and a "
    "regular expression has (…)",
    # refusal: --group, which does not match some paths, or is empty for them
    "in-no-group": "--group {group}: {inputs} in no group; give each one",
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
    "no-class-folder": "{inputs} beside {count:,} class folders ({names}): no label",
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
    # the file of the annotations is the source
    "coco-as-records": "a record has images and annotations, as COCO files have: give the folder of "
    "the images as the source, and --labels coco:FILE",
    # tables with texts in columns such as img_path
    "paths-of-images": "{names}: kept as text; if it is paths of images, --kind image reads them",
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
    # refusal: annotations, or a column objects, beside records
    "about-files": "{what} is about files that are images each, and the inputs are {inputs}",
    # refusal: folders, a labels file or annotations give a column of the same name
    "annotated-twice": "two of --labels both give {name}; leave one out, or use --drop-columns "
    "{name} for a labels file",
    # refusal: files say other names of the same classes
    "names-differ": "the files give different names to the classes of {names}; convert each alone, "
    "or keep the numbers with --labels none",
    # refusal: --labels folder, and all inputs lie right in the source
    "no-class-folders": "no input is in a folder that could be its class; leave out --labels "
    "folder, or give a labels file",
    # refusal: --labels auto, and some inputs are in no class folder
    "beside-class-folders": "{inputs} beside {count:,} class folders ({names}) would have no "
    "label. Move these files, or use --labels folder, which gives them none, or --labels none",
    # refusal: the file of --classes cannot be read
    "classes-unread": "--classes {file}: cannot be read ({why}); give a file with one name a line",
    # refusal: the file of --classes has an empty line, or a class twice
    "no-list-of-classes": "--classes {file}: it takes a text file with each class on one line, or "
    "a dataset with classes",
    # refusal: --classes, and labels without names
    "no-names-of-classes": "--classes: the inputs have no names of classes",
    # refusal: --classes, and records with numbers of their own
    "classes-in-another-order": "--classes: the files number their classes in another order",
    # refusal: --classes does not have all of the classes
    "classes-not-pinned": "--classes: {names} not among the {classes} that it pins",
    # refusal: tables with images, and a step for text
    "step-beside-images": "{step} is not for records with images ({names}); use --image-field none",
    # refusal: --mask-fields names a field that is not there
    "no-such-mask-field": "--mask-fields: there is no field {name} beside the image; others are "
    "{others}",
    # refusal: --mask-fields names a field of numbers
    "mask-of-type": "--mask-fields: {name} is of type {type}; masks are images",
    # refusal: an option names a field that is not there
    "no-such-field": "the records have no field {name}; they have {names}",
    # refusal: an option names a field within a struct
    "field-in-a-struct": "the records have no field {name}; they have {names}; {outer} is a "
    "struct, which is kept or left out as a whole",
    # refusal: records that have a field each of their own
    "scattered": "the records have {count:,} fields that the first ones lack, and {most:,} at most "
    "can be columns; name those to keep with --fields",
    # refusal: the sources are exports, with other roles of a column
    "exports-differ": "the sources are exports that differ in {name} (shardctl.json); convert each "
    "into its own dataset",
    # refusal: an option names a field, and the only one may be several
    "fields-in-one": "the records have no field {name}; they have {names}; add --delimiter {mark}",
    # refusal: --fields a=b, and there is a field a
    "same-name-twice": "two fields of the records would be called {name}; keep one with --fields",
    # refusal: --group names a field that has 3 and 3.0
    "groups-of-several-types": "the field {name} has values of several types; write groups with "
    "one type",
    # refusal: --group or --key-field names a field of fractions
    "no-names-in-field": "the field {name} is of type {type}; {what} are text, or whole numbers",
    # refusal: --schema names no field of the records
    "none-of-the-schema": "the records have none of the fields of the schema ({names}); they have "
    "{held}",
    # refusal: tables in folders such as year=2024
    "partitions-refused": "the folders (as {folder}) are values of columns that the files lack "
    "({columns}); write them into the files, or use --labels none",
    # refusal: records have a field key
    "reserved-field": "the records have a field {name!r}, which shardctl makes itself. Rename it "
    "(--fields NEW=OLD,…), or name only the others in --fields or --schema",
    # refusal: the same of a field image
    "field-image": "{what}; --kind image reads the images that it holds or names",
    # refusal: records with a field label, and labels from elsewhere
    "label-twice": "the inputs have a field label already; use --labels none",
    # refusal: records and the labels file have a column of the same name
    "columns-clash": "the labels file and the inputs both have {names}; rename it, or use "
    "--drop-columns {names}",
    # refusal: records and annotations have a column of the same name
    "annotations-clash": "the annotations give {names}, which the inputs have too; rename it there",
    # refusal: --unmoved names a field that is not there
    "no-such-unmoved": "--unmoved: there is no field {name}; fields are {names}",
    # refusal: --unmoved image, and a step that moves pixels
    "image-unmoved": "--unmoved {name}: it is the image itself, which {step} moves; leave out the "
    "step, or this of --unmoved",
    # refusal: --unmoved names a mask of annotations
    "mask-unmoved": "--unmoved {name}: it is a mask by role (`shardctl help annotations`), which "
    "{step} moves; leave out the step, or this of --unmoved",
    # refusal: --unmoved names objects of annotations
    "objects-unmoved": "--unmoved {name}: it is objects by role (`shardctl help annotations`), "
    "which {step} moves; leave out the step, or this of --unmoved",
    # refusal: a record does not fit the types that were found in all records
    "types-differ": "{why}; if it has changed since, run again; else give all files one type",
    # refusal: --classes, and objects or masks whose classes it did not pin
    "classes-of-its-own": "--classes: {name} has classes of its own",
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
    # refusal: --append to a dataset that has a labels file or annotations
    "append-with-labels": "--append cannot tell what labels files and annotations say of earlier "
    "inputs; use --update",
    # refusal: --append of a folder that a walk of the source would leave out
    "append-hidden": "{given}: is in a hidden folder of {source}; rename it",
    # refusal: --append of a file that the dataset has in another state
    "append-changed": "{file}: has changed, and --append only adds; use --update",
    # refusal: --append of inputs with other columns or classes
    "append-changes-all": "{dataset}: --append only adds shards, and these inputs change all, "
    "since {why}; use --update",
    # refusal: --update, and the labels file or the folder of labels has gone
    "labels-lost": "{dataset}: the sources have lost their {what}; bring the labels file or folder "
    "back, or use --overwrite",
    # refusal: a dataset of another conversion is there
    "differs": "{dataset}: holds a dataset that differs in its {differs}; use --overwrite to make "
    "it again, or another destination; --explain says more",
    # refusal: a dataset of the same conversion and other inputs is there
    "differs-update": "{dataset}: holds a dataset that differs in its {differs}; use --update to "
    "bring it up to date, --overwrite to make it again, or another destination; --explain says "
    "more",
    # refusal: --update of a dataset without all of its fingerprint
    "fingerprint-lost": "{dataset}: cannot be brought up to date, since a repair by an older "
    "shardctl has lost its fingerprint; use --overwrite",
    # refusal: --update with another recipe
    "other-settings": "{dataset}: cannot be brought up to date, since this conversion differs in "
    "its {differs}; leave all options but --update out, which takes those of the dataset, or use "
    "--overwrite",
    # refusal: --update by another Pillow
    "made-by-other-versions": "{dataset}: cannot be brought up to date, since other versions made "
    "it ({changes}); use those, or --overwrite",
    # refusal: --update from other sources, or from others than --moved-from says
    "other-sources": "{dataset}: was made from {made}, and {given} is {were}; give the same "
    "sources in order, and --moved-from where each was",
    # --- the finished dataset ---
    # GIF, TIFF
    "several-frames": "{images} with several frames or pages: the first is taken{advice}",
    # records without the field of labels
    "without-label": "{missing:,} of {samples} without a label",
    # a class has samples in another split
    "classes-lacking": "{split} has no sample of {of} ({names})",
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
    """Return the sentence of a notice, a warning or a refusal about these values."""
    return _SENTENCES[which].format(**values)

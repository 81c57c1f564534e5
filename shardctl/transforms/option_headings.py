"""The headings under which `--help` lists the options of a conversion, in this order."""

READING = "Reading inputs"
FIELDS = "Fields of records"
LABELS = "Labels and annotations"
SPLITS = "Splits and order"
IMAGES = "Images"
CLEANING = "Text: cleaning and filters"
TOKENS = "Text: tokens and packing"
STEPS = "Recipe and any step"
STORAGE = "How samples are stored"
TARGET = "A dataset that exists already"
RUNNING = "Workers and machines"
REJECTS = "Bad inputs"
OUTPUT = "What is printed"

HEADINGS = (
    READING,
    FIELDS,
    LABELS,
    SPLITS,
    IMAGES,
    CLEANING,
    TOKENS,
    STEPS,
    STORAGE,
    TARGET,
    RUNNING,
    REJECTS,
    OUTPUT,
)

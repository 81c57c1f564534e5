#!/bin/sh
# Make the environments with the real readers and writers of other formats: `make interop`. Safe to run again.
#
# They cannot be installed together, or beside Pillow-SIMD: each has an environment of its own below .interop (or below the
# folder that SHARDCTL_INTEROP names), and the tests call it as a process. One that cannot be made is skipped, and said so.
set -u
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
base=${SHARDCTL_INTEROP:-.interop}
mkdir -p "$base"

make_environment() { # name, packages…
    name=$1
    shift
    [ -e "$base/$name/.done" ] && return 0
    "$python" -m venv "$base/$name" &&
        "$base/$name/bin/python" -m pip --disable-pip-version-check --quiet install "$@" 2>"$base/$name.log" &&
        touch "$base/$name/.done" ||
        echo "interop: could not make the environment $name ($base/$name.log says why); its tests will be skipped" >&2
}

# TensorFlow reads and writes TFRecord, TFDS reads its folders, and the Python packages of the others run beside them.
make_environment tensorflow 'tensorflow-cpu==2.21.*' 'tensorflow-datasets==4.9.10' 'datasets==5.2.*' 'webdataset==1.0.2' \
    'array_record==0.8.*' 'grain==0.2.18' 'Pillow>=10'
# These two ask for PyTorch, of which this is the build without a GPU; torchvision is not asked to come with another one.
make_environment torch 'torch==2.13.0' 'mosaicml-streaming==0.13.*' 'litdata==0.2.76' 'numpy<2.2' 'transformers<5' 'Pillow>=10' \
    'webdataset==1.0.2' polars pyarrow
# The guard for older readers of Hugging Face datasets.
make_environment datasets3 'datasets==3.6.0' 'Pillow>=10'
# Azure's object store, from npm: needs Node.js.
if [ ! -e "$base/azurite/.done" ]; then
    mkdir -p "$base/azurite"
    npm install --prefix "$base/azurite" --silent --no-audit --no-fund 'azurite@3.37' >"$base/azurite.log" 2>&1 &&
        touch "$base/azurite/.done" ||
        echo "interop: could not install Azurite ($base/azurite.log says why); its tests will be skipped" >&2
fi
# The reader of COCO's annotations, whose wheels need NumPy only.
make_environment coco 'pycocotools==2.0.11'

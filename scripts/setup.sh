#!/bin/sh
# Make .venv with shardctl and everything its tests need. Run by `make setup`; safe to run again.
#
# Pillow-SIMD is built from source, against the image libraries whose headers are there: they are installed first where that
# is allowed. Where it cannot be built, Pillow takes its place; the last lines, from `shardctl --version`, name it. One of the
# two that is in .venv stays, unless SHARDCTL_IMAGING names the other.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
headers="libjpeg-dev zlib1g-dev libwebp-dev libtiff-dev liblcms2-dev libopenjp2-7-dev"

install_headers() {
    command -v apt-get >/dev/null || return 0
    for package in $headers; do
        # libjpeg-dev is an empty package that others may stand in for: ask for the header itself
        dpkg -s "$package" >/dev/null 2>&1 || missing=yes
    done
    [ "${missing:-no}" = yes ] || return 0
    if [ "$(id -u)" = 0 ]; then root=""; elif sudo -n true 2>/dev/null; then root="sudo -n"; else
        echo "setup: may not install image headers ($headers); Pillow-SIMD will read fewer formats" >&2
        return 0
    fi
    $root apt-get update -qq >/dev/null 2>&1 || true
    # shellcheck disable=SC2086 # both are lists of words
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $headers >/dev/null 2>&1 ||
        echo "setup: could not install image headers ($headers); Pillow-SIMD may read fewer formats" >&2
}

if [ ! -x .venv/bin/python ]; then "$python" -m venv .venv; fi
pip=".venv/bin/python -m pip --disable-pip-version-check --quiet"
$pip install --upgrade pip 'setuptools>=77'

# The two imaging packages install the same folder, so that only one of them may be there.
found=$(.venv/bin/python -c '
from importlib.metadata import distributions
print(*sorted({each.name.lower() for each in distributions() if each.name.lower() in ("pillow", "pillow-simd")}))')
if [ -z "$found" ]; then
    install_headers
    case $(uname -sm) in "Linux x86_64") found=pillow-simd ;; *) found=pillow ;; esac
fi
export SHARDCTL_IMAGING="${SHARDCTL_IMAGING:-${found#pillow }}" # where both are, the faster one
case $found in "$SHARDCTL_IMAGING") ;; *) $pip uninstall --yes pillow pillow-simd 2>/dev/null ;; esac
install() { PYTHONWARNINGS=ignore $pip install --editable '.[dev]' 2>.venv/install.log; }
if ! install; then
    cp .venv/install.log .venv/first-install.log
    SHARDCTL_IMAGING=pillow
    install || { cat .venv/install.log >&2; exit 1; }
    echo "setup: installed with Pillow, which is slower than Pillow-SIMD (.venv/first-install.log says why)" >&2
fi
# The pages are looked at in a real browser, where there is one.
if [ "${SHARDCTL_BROWSER:-no}" = yes ] && ! command -v chromium >/dev/null; then
    apt-get update -qq >/dev/null 2>&1 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >.venv/browser.log 2>&1 ||
        echo "setup: could not install Chromium (.venv/browser.log says why); the tests of pages will be skipped" >&2
fi
# The frameworks are large, and their tests are skipped without them.
if [ "${SHARDCTL_FRAMEWORKS:-no}" = yes ]; then
    { $pip install 'torch==2.13.0' torchdata jax grain tensorflow-cpu opencv-python-headless 'ray>=2.49' &&
        $pip install --no-deps 'torchvision==0.28.0' tensorboard; } 2>.venv/frameworks.log || # they ask for Pillow, and the package that is there will do
        echo "setup: could not install the frameworks (.venv/frameworks.log says why); their tests will be skipped" >&2
fi
.venv/bin/shardctl --version

#!/bin/sh
# Make .venv with shardctl and everything its tests need. Run by `make setup`; safe to run again.
#
# Pillow-SIMD is built from source, against the image libraries whose headers are there: they are installed first where that
# is allowed. Where it cannot be built, or reads less than Pillow, Pillow takes its place; the last lines, from
# `shardctl --version`, name it. One of the two that is in .venv stays, unless SHARDCTL_IMAGING names the other: pillow or
# pillow-simd. Only this script knows the variable.
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
        echo "setup: may not install image headers ($headers)" >&2
        return 0
    fi
    $root apt-get update -qq >/dev/null 2>&1 || true
    # shellcheck disable=SC2086 # both are lists of words
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $headers >/dev/null 2>&1 ||
        echo "setup: could not install image headers ($headers)" >&2
}

# An environment without pip is what is left of a set-up that was interrupted, or another tool made it.
.venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip --upgrade >/dev/null 2>&1 ||
    "$python" -m venv --clear .venv
pip=".venv/bin/python -m pip --disable-pip-version-check --quiet"
$pip install --upgrade pip 'setuptools>=77' packaging

# shardctl asks for Pillow. Its requirements are installed without it, so that Pillow does not come over Pillow-SIMD.
log=.venv/install.log
$pip install --no-deps --editable . >$log 2>&1 || { cat $log >&2; exit 1; }
.venv/bin/python - >.venv/requirements.txt <<'END'
from importlib.metadata import requires

from packaging.requirements import Requirement

for text in requires("shardctl") or ():
    wanted = Requirement(text)
    if wanted.name != "pillow" and (wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", "dev"))):
        wanted.marker = None
        print(wanted)
END
PYTHONWARNINGS=ignore $pip install --requirement .venv/requirements.txt >$log 2>&1 || { cat $log >&2; exit 1; }

# The two imaging packages install the same folder, so that only one of them may be there.
found=$(.venv/bin/python -c '
from importlib.metadata import distributions
print(*sorted({each.name.lower() for each in distributions() if each.name.lower() in ("pillow", "pillow-simd")}))')
imaging=${SHARDCTL_IMAGING:-${found#pillow }} # where both are, the faster one
if [ -z "$imaging" ]; then
    case $(uname -sm) in "Linux x86_64") imaging=pillow-simd ;; *) imaging=pillow ;; esac
fi
case $imaging in pillow | pillow-simd) ;; *)
    echo "setup: SHARDCTL_IMAGING is '$imaging'; it can be pillow or pillow-simd" >&2
    exit 2
    ;;
esac
case $found in "" | "$imaging") ;; *) $pip uninstall --yes pillow pillow-simd 2>/dev/null ;; esac
if [ "$imaging" = pillow-simd ] && [ "$found" != pillow-simd ]; then install_headers; fi

# Its build does not look where Debian puts the header of libtiff, unless it is told.
CPATH="/usr/include/$("${CC:-cc}" -print-multiarch 2>/dev/null || true)${CPATH:+:$CPATH}"
export CPATH
if ! { $pip install --no-deps "$imaging>=10.4" && .venv/bin/python -c '
from PIL import features
lacking = [name for name in ("jpg", "zlib", "libtiff", "webp", "jpg_2000", "littlecms2") if not features.check(name)]
raise SystemExit(f"built without {lacking}" if lacking else 0)'; } >.venv/imaging.log 2>&1; then
    $pip uninstall --yes pillow-simd >$log 2>&1
    $pip install --no-deps 'pillow>=10.4' >$log 2>&1 || { cat $log >&2; exit 1; }
    echo "setup: installed with Pillow, which is slower than Pillow-SIMD (.venv/imaging.log says why)" >&2
fi
# The pages are looked at in a real browser, where there is one.
if [ "${SHARDCTL_BROWSER:-no}" = yes ] && ! command -v chromium >/dev/null; then
    apt-get update -qq >/dev/null 2>&1 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >.venv/browser.log 2>&1 ||
        echo "setup: could not install Chromium (.venv/browser.log says why); the tests of pages will be skipped" >&2
fi
# The frameworks are large, and their tests are skipped without them.
if [ "${SHARDCTL_FRAMEWORKS:-no}" = yes ]; then
    { $pip install 'torch==2.13.0' torchdata 'transformers[torch]' lightning jax grain tensorflow-cpu 'ray>=2.49' &&
        $pip install --no-deps 'torchvision==0.28.0' tensorboard; } 2>.venv/frameworks.log || # they ask for Pillow, and the package that is there will do
        echo "setup: could not install the frameworks (.venv/frameworks.log says why); their tests will be skipped" >&2
fi
.venv/bin/shardctl --version

"""Which imaging library is installed, what it can read, and whether two of them fight over one folder."""

from __future__ import annotations

from importlib import metadata

from shardctl.errors import InstallError

MEND = (
    "pip uninstall -y pillow pillow-simd && pip install --no-cache-dir pillow-simd"
    " (or pillow, where Pillow-SIMD does not build)"
)


def installed() -> dict[str, str]:
    """Return the imaging packages that are installed, name to version. Sound is exactly one."""
    found = {}
    for name, package in (("Pillow-SIMD", "pillow-simd"), ("Pillow", "pillow")):
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def require_one() -> str:
    """Return the name and version of the one imaging package. Raises InstallError for none or two."""
    found = installed()
    if len(found) == 2:
        raise InstallError(
            f"both Pillow and Pillow-SIMD are installed, and each has overwritten files of the other; mend it with: {MEND}"
        )
    if not found:
        raise InstallError("no imaging package is installed; run: pip install pillow-simd (or pillow)")
    ((name, version),) = found.items()
    return f"{name} {version}"


def libraries() -> list[str]:
    """Return what the imaging package was built with: libjpeg-turbo 2.1.5, libwebp 1.2.4, …"""
    from PIL import features

    names = {
        "jpg": "libjpeg-turbo",
        "zlib": "zlib",
        "webp": "libwebp",
        "libtiff": "libtiff",
        "jpg_2000": "OpenJPEG",
        "littlecms2": "LittleCMS",
        "avif": "libavif",
    }
    versions = {name: features.version(name) or "" for name in names if features.check(name)}
    if features.check("libjpeg_turbo"):
        versions["jpg"] = features.version("libjpeg_turbo") or ""  # "jpg" has the version of the old library's interface
    return [f"{names[name]} {version}".strip() for name, version in versions.items()]

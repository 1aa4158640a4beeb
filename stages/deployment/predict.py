"""Predicts with the bundle that this file lies in. Needs numpy, onnxruntime and Pillow, nothing else.

    python predict.py photo.png folder/ samples.npz       one line per sample: source, label, probability
    python predict.py --json photo.png                    the same as JSON, with the probability of every class
    python predict.py --check                             checksums and stored predictions of the bundle

Samples: PNG or JPEG files, folders of them, .npy (N, ...) or .npz (one array, or one named images, samples, x,
x_train or train_images).
Ends with 0; 64 for a wrong command line; 65 for a damaged bundle or samples that it cannot take, with one line why.
"""

import argparse
import hashlib
import io
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

USAGE, BAD_DATA = 64, 65
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
ARRAY_NAMES = ("images", "samples", "x", "x_train", "train_images")
_BATCH = 128
_PIECE_BYTES = 2**20
_ERRORS_ONLY = 3
_DEPTH_IN_PNG, _DEEP_PNG = slice(24, 25), bytes([16])


class RefusedError(Exception):
    """The bundle or a sample cannot be used; the message is the one line that says why."""


class Bundle:
    """A loaded bundle: its manifest, labels and model."""

    def __init__(self, folder: Path, threads: int = 0) -> None:
        """Checks the files against the manifest and loads the model. Raises `RefusedError`."""
        self.folder = folder
        self.manifest = read_manifest(folder)
        check_files(folder, self.manifest)
        self.labels: list[str] = _read_labels(folder, self.manifest)
        self.shape = tuple(int(side) for side in self.manifest["input"]["shape"][1:])
        self.dtype = np.dtype(self.manifest["input"]["dtype"])
        self._session = _load_model(folder / self.manifest["model"], threads)

    def probabilities(self, samples: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Raw samples (n, *shape) -> probability of every class (n, classes). Raises `RefusedError`."""
        parts = [np.empty((0, len(self.labels)))]
        for start in range(0, len(samples), _BATCH):
            try:
                (logits,) = self._session.run(["logits"], {"input": samples[start : start + _BATCH]})
            except Exception as error:  # ONNX Runtime has a dozen exception types without a common base.
                raise RefusedError(f"the model fails: {_one_line(error)}") from None
            powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
            parts.append(powers / powers.sum(axis=1, keepdims=True))
        return np.concatenate(parts)


def _read_labels(folder: Path, manifest: dict[str, Any]) -> list[str]:
    labels = _json(folder / "labels.json")
    wanted = manifest["output"]["shape"][-1]
    if not isinstance(labels, list) or len(labels) != wanted or not all(isinstance(label, str) for label in labels):
        raise RefusedError(f"{folder / 'labels.json'} must be a list of {wanted} names; get the bundle again")
    return labels


def _load_model(path: Path, threads: int) -> Any:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # Else it reports the model's names and hashes to its maker.
    try:
        import onnxruntime  # Here, so that a bundle can be checked before it is known to be whole.
    except ImportError:
        raise RefusedError("onnxruntime is missing; pip install numpy onnxruntime pillow") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = _ERRORS_ONLY
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise RefusedError(f"{path} cannot be loaded: {_one_line(error)}") from None


# --- the bundle's own files


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, its form and its own checksum checked. Raises `RefusedError`."""
    path = folder / "manifest.json"
    manifest = _json(path)
    try:
        files, given = manifest["files"], manifest["input"]
        whole = (
            all(isinstance(side, int) and side > 0 for side in [*given["shape"][1:], *manifest["output"]["shape"][1:]])
            and given["dtype"] in ("uint8", "float32")
            and {"model.onnx", "labels.json"} <= set(files)
            and manifest["model"] in files
            and all(len(entry["sha256"]) == 64 and entry["bytes"] >= 0 for entry in files.values())
        )
    except (KeyError, TypeError, AttributeError, IndexError):
        whole = False
    if not whole:
        raise RefusedError(f"{path} is damaged: it must name the model, the input and every file with its checksum")
    if manifest.get("checksum") != manifest_checksum(manifest):
        raise RefusedError(f"{path} is damaged: its own checksum is missing or does not hold; get the bundle again")
    for name in files:
        if is_outside(name):
            raise RefusedError(f"{path} names {name!r}, which lies outside the bundle; do not use this bundle")
    return dict(manifest)


def manifest_checksum(manifest: dict[str, Any]) -> str:
    """Hex SHA-256 of the manifest without its key `checksum`, as JSON with sorted keys and no spaces, in UTF-8."""
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_outside(name: str) -> bool:
    """Whether a file name of a manifest could leave the bundle's folder."""
    path = PurePosixPath(name)
    return not name or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Every file of the manifest must be there with its size and SHA-256. Raises `RefusedError`."""
    for name, entry in sorted(manifest["files"].items()):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise RefusedError(f"{path} leads out of the bundle; do not use this bundle")
        if not path.is_file():
            raise RefusedError(f"{path} is missing; get the whole bundle again")
        if path.stat().st_size != entry["bytes"] or _sha256(path) != entry["sha256"]:
            raise RefusedError(f"{path} is damaged: its checksum is not that of the manifest; get the bundle again")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def check_predictions(bundle: Bundle) -> int:
    """Compares the stored predictions with what the model gives now; their number. Raises `RefusedError`.

    The label of the largest probability now is not compared: where two are nearly equal, another processor's rounding
    may turn them round, and all of them must lie within the tolerance anyway.
    """
    path = bundle.folder / "predictions.json"
    samples = check_samples(bundle, _load_array(bundle.folder / "samples.npy"), "samples.npy")
    try:
        stored = _json(path)
        tolerance, rows = float(stored["tolerance"]), list(stored["predictions"])
        labels = [str(row["label"]) for row in rows]
        wanted = np.array([row["probabilities"] for row in rows], dtype=np.float64)
    except (KeyError, TypeError, ValueError):
        wanted = np.empty(0)
    if wanted.shape != (len(samples), len(bundle.labels)):
        raise RefusedError(f"{path} must hold the predictions of the {len(samples)} samples; get the bundle again")
    for number, (label, row, found) in enumerate(zip(labels, wanted, bundle.probabilities(samples), strict=True)):
        largest = [name for name, value in zip(bundle.labels, row, strict=True) if value == row.max()]
        if label not in largest:
            raise RefusedError(
                f"stored prediction {number} in {path} says {label!r}, its probabilities say {largest}; "
                "get the bundle again"
            )
        difference = float(np.abs(found - row).max())
        if not difference <= tolerance:
            raise RefusedError(
                f"stored prediction {number} ({label!r}) must hold within {tolerance:g}, this machine gives "
                f"{bundle.labels[int(found.argmax())]!r}, {difference:.3g} off; use the onnxruntime version that the "
                "README names"
            )
    return len(rows)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RefusedError(f"{path} is missing; get the whole bundle again") from None
    except (ValueError, OSError, RecursionError) as error:
        raise RefusedError(f"{path} is damaged: {_one_line(error)}") from None


# --- samples


def read_samples(bundle: Bundle, paths: Sequence[Path]) -> Iterator[tuple[list[str], npt.NDArray[Any]]]:
    """Names and raw samples (n, *shape), file by file; images in batches. Raises `RefusedError`."""
    names: list[str] = []
    pixels: list[npt.NDArray[Any]] = []
    for path in _files(paths):
        if path.suffix.lower() in IMAGE_SUFFIXES:
            names.append(str(path))
            pixels.append(read_image(bundle, path))
            if len(names) < _BATCH:
                continue
        if names:
            yield names, np.stack(pixels)
            names, pixels = [], []
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            samples = check_samples(bundle, _load_array(path), str(path))
            yield [f"{path}[{number}]" for number in range(len(samples))], samples
    if names:
        yield names, np.stack(pixels)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(child for child in path.rglob("*") if child.suffix.lower() in IMAGE_SUFFIXES)
            if not found:
                raise RefusedError(f"{path} holds no PNG or JPEG file")
            yield from found
        elif not path.exists():
            raise RefusedError(f"{path} does not exist")
        elif path.suffix.lower() not in (*IMAGE_SUFFIXES, ".npy", ".npz"):
            raise RefusedError(f"{path} must be a folder, or end in .png, .jpg, .jpeg, .npy or .npz")
        else:
            yield path


def read_image(bundle: Bundle, path: Path) -> npt.NDArray[np.uint8]:
    """A PNG or JPEG file as uint8 (H, W, C), converted to the model's channels. Raises `RefusedError`."""
    if len(bundle.shape) != 3 or bundle.dtype != np.uint8 or bundle.shape[2] not in (1, 3):
        raise RefusedError(f"{path}: this model takes {bundle.dtype} arrays {bundle.shape}, no image files; use .npy")
    from PIL import Image  # Only for images: arrays need no Pillow.

    height, width, channels = bundle.shape
    try:
        with warnings.catch_warnings(), Image.open(path, formats=("PNG", "JPEG")) as image:
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            deep_png = image.format == "PNG" and _head(path)[_DEPTH_IN_PNG] == _DEEP_PNG
            if deep_png or image.mode.startswith(("I", "F")):
                raise RefusedError(f"{path} has more than 8 bits a channel; save it with 8")
            plain = image.convert("L" if channels == 1 else "RGB")
    except RefusedError:
        raise
    except Exception as error:  # On damaged files Pillow raises whatever its parsing ran into.
        raise RefusedError(f"{path} is no readable PNG or JPEG image: {_one_line(error)}") from None
    if plain.size != (width, height):
        if not bundle.manifest.get("resize"):
            raise RefusedError(f"{path} must be {width} x {height} pixels, it is {plain.width} x {plain.height}")
        plain = plain.resize((width, height), Image.Resampling.BILINEAR)
    return np.array(plain, dtype=np.uint8).reshape(height, width, channels)


def _head(path: Path) -> bytes:
    """As far as a PNG's bit depth: Pillow cuts 16-bit RGB to 8 as it opens the file, so the mode does not tell."""
    with path.open("rb") as file:
        return file.read(_DEPTH_IN_PNG.stop)


def _load_array(path: Path) -> npt.NDArray[Any]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            named = [name for name in ARRAY_NAMES if name in loaded.files] or loaded.files
            if len(named) != 1:
                found = ", ".join(loaded.files) or "none"
                raise RefusedError(
                    f"{path} must hold one array, or one named {', '.join(ARRAY_NAMES)}; it has: {found}"
                )
            return np.asarray(loaded[named[0]])
    except RefusedError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise whatever a damaged file makes them.
        raise RefusedError(f"{path} is no readable .npy or .npz file of numbers: {_one_line(error)}") from None


def check_samples(bundle: Bundle, samples: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Samples as (n, *shape), a single one made a batch of one. Raises `RefusedError` for what does not fit."""
    one_channel = len(bundle.shape) == 3 and bundle.shape[2] == 1
    if one_channel and samples.ndim in (2, 3) and samples.shape[-2:] == bundle.shape[:2]:
        samples = samples[..., None]  # (n, H, W) or (H, W): the sources take them so, too.
    batch = samples[None] if samples.shape == bundle.shape else samples
    is_number = batch.dtype.kind == "f" or (batch.dtype.kind in "iu" and len(bundle.shape) == 1)
    if bundle.dtype.kind == "f" and is_number:  # As the sources take them.
        with np.errstate(over="ignore"):
            batch = batch.astype(bundle.dtype)
    if batch.shape[1:] != bundle.shape or batch.dtype != bundle.dtype:
        raise RefusedError(
            f"{name} must be {bundle.dtype} (n, {', '.join(map(str, bundle.shape))}), "
            f"it is {samples.dtype} {samples.shape}"
        )
    if not len(batch):
        raise RefusedError(f"{name} holds no sample: it is {samples.dtype} {samples.shape}")
    if batch.dtype.kind == "f" and not np.isfinite(batch).all():
        raise RefusedError(f"{name} holds NaN or infinity")
    return np.ascontiguousarray(batch)


# --- command line


def predict(bundle: Bundle, paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """One dictionary per sample: source, label, probability, probabilities (by label). Raises `RefusedError`."""
    for names, samples in read_samples(bundle, paths):
        for name, found in zip(names, bundle.probabilities(samples), strict=True):
            best = int(found.argmax())
            by_label = {label: round(float(value), 6) for label, value in zip(bundle.labels, found, strict=True)}
            yield {
                "source": name,
                "label": bundle.labels[best],
                "probability": round(float(found[best]), 6),
                "probabilities": by_label,
            }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = _Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="images, folders, .npy or .npz files")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--check", action="store_true", help="check the bundle's checksums and stored predictions")
    parser.add_argument("--threads", type=int, default=0, help="threads of ONNX Runtime (default: all cores)")
    chosen = parser.parse_args(arguments)
    if not chosen.files and not chosen.check:
        parser.error("name at least one FILE, or --check")
    try:
        bundle = Bundle(Path(__file__).resolve().parent, max(0, chosen.threads))
        if chosen.check:
            _say(f"whole: {len(bundle.manifest['files'])} files, {check_predictions(bundle)} stored predictions agree")
        if chosen.files:
            _print(predict(bundle, chosen.files), as_json=chosen.json)
    except RefusedError as error:
        sys.stderr.write(f"predict: {error}\n")
        return BAD_DATA
    return 0


class _Parser(argparse.ArgumentParser):
    """argparse ends in 2 for a wrong command line; sysexits.h and Shipway say 64."""

    def error(self, message: str) -> NoReturn:
        """Prints usage and message, ends with 64."""
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"predict: {message}\n")


def _print(rows: Iterator[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        _say(_json_text(list(rows)))
        return
    for row in rows:
        _say(f"{row['source']}\t{row['label']}\t{row['probability']:.4f}")


def _json_text(rows: list[dict[str, Any]]) -> str:
    """With escapes of JSON where stdout lacks a character: those of `backslashreplace` are no JSON."""
    text = json.dumps(rows, indent=2, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(rows, indent=2)
    return text


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _one_line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def _program() -> int:
    """`main` for a terminal or pipe, which may lack characters or close early (`... | head -1`)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # The reader has what it wanted; Python's own flush at the end must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


if __name__ == "__main__":
    sys.exit(_program())

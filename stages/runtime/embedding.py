"""Puts an identity into the files of an artifact, and reads it back: one key, `shipway`, with canonical JSON.

One key only: safetensors writes several in random order, which would change the bytes.
"""

import json
import struct
from pathlib import Path
from typing import Any

from stages.runtime.files import files_below, write_bytes

KEY = "shipway"


def embed_all(output: Path, identity: str) -> None:
    """Embeds into every .safetensors and .onnx file of an output that carries none yet.

    A file that was handed on unchanged keeps its maker's identity, and so its digest.
    """
    for file in files_below(output):
        if file.suffix == ".safetensors" and KEY not in read_safetensors_metadata(file):
            _embed_safetensors(file, identity)
        elif file.suffix == ".onnx":
            _embed_onnx(file, identity)


def read(file: Path) -> dict[str, Any] | None:
    """The identity inside a .safetensors or .onnx file; None where there is none."""
    text = read_safetensors_metadata(file).get(KEY) if file.suffix == ".safetensors" else _onnx_metadata(file).get(KEY)
    return dict(json.loads(text)) if text else None


def read_safetensors_metadata(file: Path) -> dict[str, str]:
    """The `__metadata__` of a safetensors file. Raises `ValueError` for one that was cut off."""
    with file.open("rb") as handle:
        (length,) = struct.unpack("<Q", handle.read(8))
        header: dict[str, Any] = json.loads(handle.read(length))
    tensors = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    if file.stat().st_size < 8 + length + max(tensors, default=0):
        raise ValueError(f"{file} is cut off: its tensors are not all there")
    return dict(header.get("__metadata__") or {})


def _embed_safetensors(file: Path, identity: str) -> None:
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header = {"__metadata__": {**header.pop("__metadata__", {}), KEY: identity}, **header}
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)  # The format aligns the tensors to 8 bytes.
    write_bytes(file, struct.pack("<Q", len(encoded)) + encoded + content[8 + length :])


def _onnx_metadata(file: Path) -> dict[str, str]:
    import onnx  # Only for stages that leave ONNX.

    return {entry.key: entry.value for entry in onnx.load(file, load_external_data=False).metadata_props}


def _embed_onnx(file: Path, identity: str) -> None:
    import onnx

    model = onnx.load(file, load_external_data=False)
    if any(entry.key == KEY for entry in model.metadata_props):
        return
    model.metadata_props.add(key=KEY, value=identity)
    write_bytes(file, model.SerializeToString(deterministic=True))

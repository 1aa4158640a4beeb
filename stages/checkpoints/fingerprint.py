"""What a training *is*, as one hash: equal fingerprints may share checkpoints."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from stages.runtime.exits import BadParams
from stages.runtime.files import canonical_json, sha256_bytes


def fingerprint(
    *,
    params: Mapping[str, Any],
    data: str,
    inputs: Mapping[str, str],
    seed: int,
    threads: int,
    micro_batch: int,
    module: nn.Module,
) -> str:
    """Hex SHA-256.

    `params`: the stage's sections by `identifying` (without what only accompanies the run). `data`: content hash of
    the prepared data. `inputs`: digests of other artifacts that enter, such as the teacher. `micro_batch` and
    `threads` change rounding, so they count. `module` enters with its structure and its starting weights.
    """
    parts = {
        "params": dict(params),
        "data": data,
        "inputs": dict(inputs),
        "seed": seed,
        "threads": threads,
        "micro_batch": micro_batch,
        "module": module_hash(module),
    }
    return sha256_bytes(canonical_json(parts).encode())


def module_hash(module: nn.Module) -> str:
    """Hex SHA-256 over the printed structure and every tensor of the state dict (name, type, shape, content).

    Raises `BadParams` for state that is no tensor (`get_extra_state`): it could be neither saved nor resumed.
    """
    found = hashlib.sha256(repr(module).encode())
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            raise BadParams(f"the network's state must be tensors, {name} is {type(tensor).__name__}; use a buffer")
        found.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()

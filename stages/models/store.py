"""A network on disk: weights.safetensors, and structure.json that rebuilds the module, a pruned one too."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from stages.config.base import Kwargs
from stages.config.model import Model
from stages.models import registry, structure
from stages.models.counting import Counts
from stages.runtime.exits import BadData, BadParams
from stages.runtime.files import read_json, write_bytes, write_json

WEIGHTS, STRUCTURE, STATUS = "weights.safetensors", "structure.json", "status.json"


@dataclass(frozen=True)
class Spec:
    """What a module was built from."""

    name: str
    """Family or import path, as in `config.Model`."""

    kwargs: Kwargs
    input_shape: tuple[int, ...]
    """The data's (H, W, C) or (D,)."""

    classes: int


def save(folder: Path, module: nn.Module, spec: Spec) -> None:
    """Writes weights and structure. Equal modules give equal bytes. Raises `OSError` on a full disk."""
    state, tied = structure.untie(module.state_dict())
    described = {
        "name": spec.name,
        "kwargs": spec.kwargs,
        "input_shape": list(spec.input_shape),
        "classes": spec.classes,
        "layers": structure.describe(module),
        "tied": tied,
    }
    write_bytes(folder / WEIGHTS, safetensors.torch.save(state))  # As bytes, so that a full disk is an OSError.
    write_json(folder / STRUCTURE, described)


def load(folder: Path) -> tuple[nn.Module, Spec]:
    """The module with its weights, on the CPU, in evaluation mode, and what it was built from.

    The random state is left as it was. Raises `BadData` when the files are damaged or do not fit each other, and
    `BadParams` when the factory that they name cannot be used.
    """
    described, state = _read(folder)
    try:
        spec = Spec(described["name"], described["kwargs"], tuple(described["input_shape"]), int(described["classes"]))
        layers, tied = dict(described["layers"]), dict(described["tied"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(f"{folder / STRUCTURE} is damaged ({error!r}); {_AGAIN}") from None
    with torch.random.fork_rng(devices=[]):
        module = registry.construct(Model(name=spec.name, kwargs=spec.kwargs), spec.input_shape, spec.classes)
        if any(isinstance(layer, LazyModuleMixin) for layer in module.modules()):  # Take their shapes in a first pass.
            registry.check(module, spec.input_shape, spec.classes, f"model {spec.name!r}")
    try:
        structure.resize(module, layers, tied)
        module.load_state_dict(structure.tie(state, tied), strict=True)
        registry.check(module, spec.input_shape, spec.classes, f"the model in {folder}")
    except (structure.StructureError, RuntimeError, BadParams) as error:
        said = " ".join(str(error).split())[:400]
        raise BadData(f"{folder}: the weights do not fit the structure: {said}; {_AGAIN}") from None
    return module.eval(), spec


def write_status(folder: Path, status: str, reason: str, counts: Counts, val_accuracy: float) -> None:
    """status.json of a model artifact. `status` is finished, stopped or skipped."""
    values = {"status": status, "reason": reason, "params": counts.params, "macs": counts.macs}
    write_json(folder / STATUS, {**values, "val_accuracy": val_accuracy})


def read_status(folder: Path) -> dict[str, Any]:
    """What `write_status` wrote. Raises `BadData`."""
    try:
        return dict(read_json(folder / STATUS))
    except (OSError, ValueError) as error:
        raise BadData(f"{folder / STATUS} cannot be read ({error}); {_AGAIN}") from None


_AGAIN = "run the stage that made it again, or `dvc checkout`"


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        described = dict(read_json(folder / STRUCTURE))
        state = safetensors.torch.load((folder / WEIGHTS).read_bytes())
    except FileNotFoundError as error:
        raise BadData(f"{error.filename} is missing; {_AGAIN}") from None
    except (ValueError, TypeError, safetensors.SafetensorError) as error:
        raise BadData(f"{folder}: structure or weights are damaged ({error}); {_AGAIN}") from None
    return described, state

"""From the section `model` of params.yaml to a network: the families that Shipway knows, or a factory of your own.

A network of your own is a file in this folder and one line in `FAMILIES`, or an import path.
"""

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from stages.config.model import Model
from stages.models.mlp import mlp
from stages.models.resnet_cifar import resnet_cifar
from stages.runtime.exits import BadParams

FAMILIES: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "resnet_cifar": resnet_cifar,
}
_GIVEN = ("input_shape", "classes", "num_classes")
"""Filled in from the data where the factory takes them; torchvision's and timm's factories take `num_classes`."""
_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def build(model: Model, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network, freshly initialised from torch's global generator, on the CPU, in training mode.

    `input_shape` is the data's (H, W, C) or (D,). The network takes normalised float (N, C, H, W) or (N, D) and gives
    logits (N, classes): tried on a small random batch. Raises `BadParams` when it cannot be built or gives anything
    else.
    """
    module = construct(model, input_shape, classes)
    check(module, input_shape, classes, f"model {model.name!r}")
    return module


def look_up(model: Model) -> None:
    """Sees, without data, that a model's name and its arguments are right. Raises `BadParams`.

    A factory of the user's own may need the data's real shape: of its arguments only the names are looked at.
    """
    if model.name in FAMILIES:
        with torch.device("meta"):  # No memory, no random number.
            construct(model, (32, 32, 3), 10)
    else:
        _arguments(_factory(model.name), model, dict.fromkeys(_GIVEN))


def construct(model: Model, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """`build` without the trial."""
    factory = _factory(model.name)
    given = {"input_shape": tuple(input_shape), "classes": classes, "num_classes": classes}
    kwargs = _arguments(factory, model, given)
    try:
        module = factory(**kwargs)
    except Exception as error:  # Whatever a factory raises is a fault of the parameters or of the user's code.
        raise BadParams(f"model {model.name!r} cannot be built with {model.kwargs}: {_said(error)}") from error
    if not isinstance(module, nn.Module):
        raise BadParams(f"model {model.name!r} must give a torch.nn.Module, it gave {type(module).__name__}")
    return module


def check(module: nn.Module, input_shape: tuple[int, ...], classes: int, what: str) -> None:
    """Sees on a random batch of two that the module gives floating (N, classes). Raises `BadParams`.

    Leaves no trace: evaluation mode (no statistics are updated), mode and random state are put back.
    """
    extra = [name for name, value in module.state_dict().items() if not isinstance(value, torch.Tensor)]
    if extra:
        raise BadParams(f"{what} must keep its state in tensors alone, {extra[0]} is none; drop its get_extra_state")
    shape = batch_shape(input_shape, 2)
    was_training = module.training
    module.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            logits = module(torch.randn(shape))
    except Exception as error:
        raise BadParams(f"{what} must take float {shape}; its forward raised {_said(error)}") from error
    finally:
        module.train(was_training)
    if not isinstance(logits, torch.Tensor):
        raise BadParams(f"{what} must give one tensor of logits (N, {classes}), it gave {type(logits).__name__}")
    if logits.shape != (2, classes) or not logits.is_floating_point():
        came = f"{str(logits.dtype).removeprefix('torch.')} {tuple(logits.shape)}"
        raise BadParams(f"{what} must give float logits (N, {classes}); for a batch of 2 it gave {came}")


def batch_shape(input_shape: tuple[int, ...], samples: int) -> tuple[int, ...]:
    """What the network takes: (H, W, C) -> (N, C, H, W), (D,) -> (N, D)."""
    if len(input_shape) == 3:
        height, width, channels = input_shape
        return samples, channels, height, width
    return samples, *input_shape


def _factory(name: str) -> Callable[..., Any]:
    if name in FAMILIES:
        return FAMILIES[name]
    if ":" not in name:
        near = difflib.get_close_matches(name, FAMILIES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise BadParams(
            f"model {name!r} is unknown; {hint}known: {', '.join(sorted(FAMILIES))}, or package.module:factory"
        )
    if not _IMPORT_PATH.fullmatch(name):
        raise BadParams(f"model {name!r} must read package.module:factory, for example torchvision.models:resnet18")
    return _imported(name)


def _imported(name: str) -> Callable[..., Any]:
    package, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(package)
    except Exception as error:  # The module is the user's: importing it can raise anything.
        raise BadParams(f"model {name!r}: {package} cannot be imported: {_said(error)}") from error
    factory = getattr(module, attribute, None)
    if factory is None:
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise BadParams(f"model {name!r}: {package} has no {attribute!r}{hint}")
    if not callable(factory):
        raise BadParams(f"model {name!r} must name a function or class, it is {type(factory).__name__}")
    return factory  # type: ignore[no-any-return]  # callable() does not tell what it returns


def _arguments(factory: Callable[..., Any], model: Model, given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # Written in C: it has no signature to look at.
        return dict(model.kwargs)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    family = model.name in FAMILIES
    reserved = set(_GIVEN) if family else set()
    allowed = sorted(named - reserved)
    for name in model.kwargs:
        if name in reserved or (name not in named and not open_ended):
            near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise BadParams(
                f"model {model.name!r} takes no argument {name!r}; {hint}allowed: {', '.join(allowed) or 'none'}"
            )
    filled = {name: value for name, value in given.items() if name in named}
    if open_ended and "classes" not in filled:
        filled["num_classes"] = given["num_classes"]  # torchvision hands **kwargs on to the network.
    kwargs = {**filled, **model.kwargs}
    missing = [n for n, p in parameters.items() if n in named and p.default is p.empty and n not in kwargs]
    if missing:
        raise BadParams(f"model {model.name!r} needs {', '.join(missing)} in model.kwargs")
    return kwargs


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"

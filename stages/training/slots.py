"""A network's tensors by where they hang, so that one which a forward pass replaces by a new one is found too."""

from torch import Tensor, nn


class Slots:
    """The places of some weights and buffers; `now()` gives what hangs there."""

    def __init__(self, module: nn.Module, *, weights: bool) -> None:
        """All buffers, with `weights` all weights before them."""
        self.names: list[str] = []
        self._places: list[tuple[dict[str, Tensor | None], str]] = []
        kinds = ("_parameters", "_buffers") if weights else ("_buffers",)
        for kind in kinds:
            for prefix, owner in module.named_modules():
                held: dict[str, Tensor | None] = getattr(owner, kind)
                found = [name for name, tensor in held.items() if tensor is not None]
                self.names += [f"{prefix}.{name}" if prefix else name for name in found]
                self._places += [(held, name) for name in found]

    def now(self) -> list[Tensor]:
        """The tensors, in the order of `names`."""
        return [tensor for held, name in self._places if (tensor := held[name]) is not None]

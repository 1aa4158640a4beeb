"""Which layers pruning must leave alone, and why."""

from collections import defaultdict

from torch import nn


def frozen(module: nn.Module) -> set[str]:
    """Names of the layers that hold a parameter which may not be trained: their weights may not change."""
    return {name for name, layer in module.named_modules() if any(not p.requires_grad for p in _own(layer))}


def tied(module: nn.Module) -> set[str]:
    """Names of the layers that share a parameter with another one. Pruning would untie them: parameters would grow."""
    owners: dict[int, list[str]] = defaultdict(list)
    for name, layer in module.named_modules(remove_duplicate=True):
        for parameter in _own(layer):
            owners[id(parameter)].append(name)
    return {name for names in owners.values() if len(names) > 1 for name in names}


def guarded(module: nn.Module) -> dict[str, str]:
    """Layer name -> why neither its inputs nor its outputs may be pruned."""
    reasons: dict[str, str] = {}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.RNNBase):
            reasons[name] = f"{name} is recurrent ({type(layer).__name__}): its gates share one width"
        elif isinstance(layer, nn.MultiheadAttention):
            reasons[name] = f"{name} is attention: its {layer.num_heads} heads share the embedding's width"
        elif isinstance(layer, nn.EmbeddingBag):
            reasons[name] = f"{name} is an EmbeddingBag, which Torch-Pruning does not know"
    for name in sorted(tied(module)):
        reasons[name] = f"{name} shares its weights with another layer; pruned, they would be untied and grow"
    for name in sorted(frozen(module)):
        reasons[name] = f"{name} is frozen: nothing may change it"
    return reasons


def _own(layer: nn.Module) -> list[nn.Parameter]:
    return list(layer.parameters(recurse=False))

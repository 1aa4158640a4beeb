"""Section `model`: which network; also the student of `distill`."""

from stages.config.base import Kwargs, Section


class Model(Section):
    """A network from the registry in stages/models/, or a factory by import path."""

    name: str = "resnet_cifar"
    """A name from the registry (`mlp`, `resnet_cifar`, your own), or `package.module:factory`."""

    kwargs: Kwargs = {}
    """Keyword arguments for the family or the factory, for example `{depth: 14, width: 32}`."""

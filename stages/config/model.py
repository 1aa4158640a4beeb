"""Section `model`: which network; also the student of `distill`."""

from typing import Annotated

from pydantic import Field

from stages.config.base import Kwargs, Section


class Model(Section):
    """A network from the registry in stages/models/, or a factory by import path."""

    name: Annotated[str, Field(min_length=1)] = "resnet_cifar"
    """A name from the registry (`mlp`, `resnet_cifar`, your own), or `package.module:factory`."""

    kwargs: Kwargs = {}
    """Keyword arguments for the family or the factory, for example `{depth: 14, width: 32}`: all of them, those that
    are left out take the factory's own defaults."""

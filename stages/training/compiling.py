"""torch.compile where it works."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from stages.runtime.progress import say
from stages.training.batchnorm import Buffers

Forward = Callable[[Tensor], Tensor]


def forward_of(module: nn.Module, example: Tensor | None) -> Forward:
    """The network's forward pass, compiled when an example (n, ...) of its input is given and compiling works.

    Compiling needs a C++ compiler on a CPU. Where it fails, the plain network is taken, and a line says why.
    """
    if example is None:
        return module
    was_training, buffers = module.training, Buffers(module)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # The compiler's advice is not for the person who trains.
            module.train()
            # A kernel for each size, whatever came before: one for all sizes, made when the second size comes, would
            # round differently before and after a resume.
            compiled: Forward = torch.compile(module, dynamic=False)
            torch.autograd.backward(compiled(example).float().sum())
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        say(f"warning: torch.compile does not work here ({type(error).__name__}: {said}); the plain network is trained")
        return module
    finally:
        buffers.put_back()
        module.zero_grad(set_to_none=True)
        module.train(was_training)
    return compiled

"""The teacher: asked about raw batches, in evaluation mode and without gradients; its answers are kept per sample."""

from hashlib import blake2b

import torch
from torch import Tensor, nn

from stages.data.loaders import LoaderSettings, batches
from stages.data.prepared import Prepared

_BATCH = 256


class Teacher:
    """Raw batch -> the teacher's logits (n, classes), float32.

    When it is asked first, it looks once at every sample of the train split, in a fixed order and batch size; from
    then on it recognises a sample by its content. So an epoch costs little more than training the student alone, and
    the answers do not depend on which samples share a batch, nor on where a run was resumed. A batch with a sample
    that it has not seen (an augmented one) goes through the network.
    """

    def __init__(
        self, module: nn.Module, preprocess: nn.Module, prepared: Prepared, loader: LoaderSettings | None = None
    ) -> None:
        self.module = module.eval().requires_grad_(False)
        self.preprocess = preprocess
        self._prepared = prepared
        self._loader = loader or LoaderSettings()
        self._logits: Tensor | None = None
        self._rows: dict[bytes, int] = {}

    def __call__(self, raw: Tensor) -> Tensor:
        """Logits (n, classes) for the raw batch (n, *shape), on its device."""
        if self._logits is None:
            self._logits = self._look_at_all(raw.device)
        rows = [self._rows.get(key, -1) for key in _keys(raw)]
        if -1 in rows:
            return self._ask(raw)
        return self._logits[torch.tensor(rows, device=raw.device)]

    def _look_at_all(self, device: torch.device) -> Tensor:
        """All answers (N, classes); `_rows` becomes content -> row. Equal samples share the first one's answer.

        Memory: 4 bytes x classes, and a key of 16 bytes, for each sample.
        """
        self.module.to(device)
        self.preprocess.to(device)
        answers: list[Tensor] = []
        seen = 0
        for raw, _ in batches(self._prepared, self._prepared.indices("train"), _BATCH, self._loader):
            for row, key in enumerate(_keys(raw), seen):
                self._rows.setdefault(key, row)
            seen += len(raw)
            answers.append(self._ask(raw.to(device)))
        return torch.cat(answers)

    @torch.no_grad()
    def _ask(self, raw: Tensor) -> Tensor:
        with torch.autocast(raw.device.type, enabled=False):  # Its answers do not depend on the student's precision.
            logits: Tensor = self.module(self.preprocess(raw))
        return logits.float()


def _keys(raw: Tensor) -> list[bytes]:
    """A key of each sample's content."""
    return [blake2b(sample.tobytes(), digest_size=16).digest() for sample in raw.cpu().numpy()]

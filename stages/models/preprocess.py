"""Normalisation: the same module in training, validation and inside the exported graph, so the three cannot differ."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Preprocess(nn.Module):
    """Raw batch -> what the network takes.

    Images: (N, H, W, C), uint8 or float32, to float (N, C, H, W). Rows: (N, D) to float (N, D). The value is
    (raw / scale - mean) / std per channel or column, computed as raw * factor + offset. A channel that never varies
    (std 0) is only centred.
    """

    factor: Tensor
    offset: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], scale: float, shape: Sequence[int]) -> None:
        super().__init__()
        means, spreads = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
        spreads = torch.where(spreads > 0, spreads, torch.ones_like(spreads))
        self.is_image = len(shape) == 3
        view = (1, -1, 1, 1) if self.is_image else (1, -1)
        self.register_buffer("factor", (1.0 / (scale * spreads)).view(view).float(), persistent=False)
        self.register_buffer("offset", (-means / spreads).view(view).float(), persistent=False)

    def forward(self, raw: Tensor) -> Tensor:
        """See the class."""
        values = raw.to(self.factor.dtype)
        if self.is_image:
            values = values.permute(0, 3, 1, 2)
        return values * self.factor + self.offset

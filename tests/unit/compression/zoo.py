"""Small models of the kinds that a pruner meets; each takes normalised float and gives logits (N, 4)."""

import torch
from torch import Tensor, nn

IMAGE = (8, 8, 3)
ROW = (12,)
CLASSES = 4


def plain(width: int = 32) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, CLASSES),
    )


def grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1, groups=8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 1),
        nn.Conv2d(32, 32, 3, padding=1, groups=32),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1),
        nn.GroupNorm(6, 48),
        nn.ReLU(),
        nn.Conv2d(48, 48, 3, padding=1),
        nn.GroupNorm(4, 48),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, CLASSES),
    )


def flattened() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 64, CLASSES))


class LayerNormMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(12, 128)
        self.norm = nn.LayerNorm(128)
        self.leave = nn.Linear(128, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        return self.leave(torch.relu(self.norm(self.enter(rows))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(24, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        rows = images.permute(0, 2, 1, 3).flatten(2)  # (N, 8, 24): a sequence of image rows
        return self.head(self.lstm(rows)[0][:, -1])


class Encoder(nn.Module):
    """A transformer encoder over image rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(24, 32)
        self.position = nn.Parameter(torch.zeros(1, 8, 32))
        layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=128, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        rows = images.permute(0, 2, 1, 3).flatten(2)
        return self.head(self.layers(self.embed(rows) + self.position).mean(1))


class FusedAttention(nn.Module):
    """Attention with one projection for query, key and value, split by a fixed shape."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(24, 32)
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
        self.hidden = nn.Linear(32, 64)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        rows = self.embed(images.permute(0, 2, 1, 3).flatten(2))
        query, key, value = self.qkv(rows).reshape(len(rows), 8, 3, 4, 8).permute(2, 0, 3, 1, 4)
        mixed = torch.softmax(query @ key.transpose(2, 3) / 8**0.5, dim=-1) @ value
        rows = rows + self.out(mixed.transpose(1, 2).reshape(len(rows), 8, 32))
        return self.head(torch.relu(self.hidden(rows.mean(1))))


class Tied(nn.Module):
    """An embedding whose transposed weights are used again; its middle is free."""

    def __init__(self, free: bool) -> None:
        super().__init__()
        self.enter = nn.Linear(12, 64, bias=False)
        self.again = nn.Linear(12, 64, bias=False)
        self.again.weight = self.enter.weight
        self.middle = nn.Linear(64, 64) if free else nn.Identity()
        self.leave = nn.Linear(64, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        return self.leave(torch.relu(self.middle(torch.relu(self.enter(rows) + self.again(rows.flip(1))))))


class Shuffled(nn.Module):
    """Channels turned into pixels: Torch-Pruning follows PixelShuffle as if channels stayed channels."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(3, 64, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)
        self.narrow = nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.narrow(self.shuffle(torch.relu(self.wide(images)))))
        return self.head(hidden.mean(dim=(2, 3)))


class HardCoded(nn.Module):
    """Its forward names a width: pruned, the batch dimension would change in silence."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 3, padding=1)
        self.head = nn.Linear(32 * 4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        pooled = nn.functional.adaptive_avg_pool2d(torch.relu(self.conv(images)), 2)
        return self.head(pooled.reshape(-1, 32 * 4))


class UsedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 32, 3, padding=1)
        self.shared = nn.Conv2d(32, 32, 3, padding=1)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.enter(images))
        return self.head(torch.relu(self.shared(torch.relu(self.shared(hidden)))).mean(dim=(2, 3)))


class Skip(nn.Module):
    """Down, up by a transposed convolution, and joined by concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(32, 64, 3, padding=1)
        self.up = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.side = nn.Conv2d(3, 32, 1)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        up = self.up(torch.relu(self.deep(torch.relu(self.down(images)))))
        return self.head(torch.cat([up, self.side(images)], dim=1).relu().mean(dim=(2, 3)))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, padding=1)
        self.squeeze = nn.Conv2d(64, 32, 1)
        self.excite = nn.Conv2d(32, 64, 1)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = nn.functional.silu(self.conv(images))
        scale = torch.sigmoid(self.excite(nn.functional.silu(self.squeeze(hidden.mean((2, 3), keepdim=True)))))
        return self.head((hidden * scale).mean(dim=(2, 3)))

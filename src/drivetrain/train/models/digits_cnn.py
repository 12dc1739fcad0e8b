"""A small convolutional network for 8×8 digits; trains in seconds on a laptop's CPU."""

from __future__ import annotations

from torch import Tensor, nn


class DigitsCnn(nn.Module):
    """Two convolution stages and a linear head; (B, 1, 8, 8) → logits (B, num_classes).

    GroupNorm instead of BatchNorm: its statistics are a sample's own, so that the loss does not depend on how
    a batch is shared among ranks.
    """

    def __init__(self, num_classes: int = 10, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.GroupNorm(8, width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.GroupNorm(8, 2 * width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(2 * width * 16, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits

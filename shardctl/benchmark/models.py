"""Models and their training steps, for `bench --consumer`: to measure a loader with your own GPU.

    shardctl bench out --consumer shardctl.benchmark.models:resnet50 --device cuda
    shardctl bench out --consumer shardctl.benchmark.models:vit_b16 --device cuda
    shardctl bench out --consumer shardctl.benchmark.models:gpt2 --device cuda

Each is a whole step in bfloat16: pixels to numbers on the device, forward, loss, backward, SGD with
momentum, AdamW for tokens. The models are written out in plain PyTorch: torchvision needs Pillow,
which excludes Pillow-SIMD.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardctl.errors import ConsumerError
from shardctl.system.packages import install_line

try:
    import torch
    from torch import nn
except ImportError as error:  # pragma: no cover - the tests have it, or skip
    raise ImportError(
        f"shardctl.benchmark.models needs PyTorch: {install_line('torch')}"
    ) from error

CLASSES = 1000
VOCABULARY = 50_257
"""GPT-2's."""

_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""ImageNet's, of pixels from 0 to 255."""


class _Step:
    """A training step. The model is made at the first batch, for values of its shape on its
    device."""

    def __init__(self, make: Callable[..., nn.Module]) -> None:
        self._make = make
        self._model: nn.Module | None = None
        self._optimizer: Any = None

    def _learn(self, loss: torch.Tensor) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()


class Step(_Step):
    """A training step of a model of images."""

    def __call__(self, batch: dict[str, Any]) -> None:
        """Train on a batch: `image`, or its first images, (B, H, W, 3) uint8 on a device, and
        `label` (B,) where there is one.

        Raises ConsumerError for other batches.
        """
        images = (
            batch["image"] if "image" in batch else next(filter(_are_images, batch.values()), None)
        )
        if images is None or not _are_images(images):
            raise ConsumerError(
                "a training step takes images of one size as tensors; give --device"
            )
        device = images.device
        if self._model is None:
            torch.backends.cudnn.benchmark = True
            torch.manual_seed(0)
            model = self._make(int(images.shape[1]), int(images.shape[2]))
            self._model = model.to(device=device, memory_format=torch.channels_last).train()
            self._optimizer = torch.optim.SGD(
                self._model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4
            )
            self._mean = torch.tensor(_MEAN, device=device).view(1, 3, 1, 1)
            self._std = torch.tensor(_STD, device=device).view(1, 3, 1, 1)
        labels = batch.get("label")
        wanted = (
            labels.long().clamp(0, CLASSES - 1)
            if isinstance(labels, torch.Tensor)
            else torch.zeros(len(images), dtype=torch.long, device=device)
        )
        pixels = images.permute(0, 3, 1, 2).to(torch.float32).sub_(self._mean).div_(self._std)
        with torch.autocast(device.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(
                self._model(pixels.contiguous(memory_format=torch.channels_last)), wanted
            )
        self._learn(loss)


def _are_images(values: Any) -> bool:
    return isinstance(values, torch.Tensor) and values.ndim == 4 and values.shape[3] == 3


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; the stride is in the 3x3 (ResNet v1.5)."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(width_in, width, 1, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, 4 * width, 1, 1),
        )
        same = stride == 1 and width_in == 4 * width
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(*_convolution(width_in, 4 * width, 1, stride))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (B, 4 * width, H / stride, W / stride) of (B, width_in, H, W)."""
        return nn.functional.relu(self.body(x) + self.shortcut(x), inplace=True)


def _convolution(width_in: int, width_out: int, size: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(width_in, width_out, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(width_out),
    ]


def make_resnet50(_height: int, _width: int) -> nn.Module:
    """Return ResNet-50 (He et al. 2015, https://arxiv.org/abs/1512.03385, table 1): 25.6 million
    parameters."""
    layers: list[nn.Module] = [
        *_convolution(3, 64, 7, 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(channels, 64 << stage, 2 if stage and not block else 1))
            channels = 256 << stage
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )


class VisionTransformer(nn.Module):
    """Patches of 16x16 pixels and a class token through a transformer encoder."""

    def __init__(self, patches: int, width: int = 768, layers: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, patches + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, layers, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (B, CLASSES) of (B, 3, H, W)."""
        seen = self.patches(x).flatten(2).transpose(1, 2)  # (B, patches, width)
        with_token = torch.cat([self.token.expand(len(x), -1, -1), seen], 1) + self.place
        return self.head(self.encoder(with_token)[:, 0])


def make_vit_b16(height: int, width: int) -> nn.Module:
    """Return ViT-B/16 (Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929, table 1): 86
    million parameters."""
    return VisionTransformer((height // 16) * (width // 16))


class LanguageStep(_Step):
    """A training step of a language model."""

    def __call__(self, batch: dict[str, Any]) -> None:
        """Train on a batch: `tokens` (B, L) of whole numbers on a device; those beyond the
        vocabulary count as its last.

        Every token is predicted from those before it, padding too. Raises ConsumerError for other
        batches.
        """
        tokens = batch.get("tokens")
        if not isinstance(tokens, torch.Tensor) or tokens.ndim != 2 or tokens.is_floating_point():
            raise ConsumerError(
                "a training step takes blocks of tokens of one length as tensors; give --device"
            )
        if self._model is None:
            torch.manual_seed(0)
            self._model = self._make(int(tokens.shape[1])).to(tokens.device).train()
            self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=3e-4, weight_decay=0.1)
        ids = tokens.long().clamp(0, VOCABULARY - 1)
        with torch.autocast(tokens.device.type, torch.bfloat16):
            scores = self._model(ids[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
        self._learn(loss)


class Decoder(nn.Module):
    """Attention to earlier places and two linear layers, each beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_linear = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.answer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.linear = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (B, L, width) of (B, L, width)."""
        parts = (
            self.asked(self.before_attention(x))
            .unflatten(2, (3, self.heads, -1))
            .permute(2, 0, 3, 1, 4)
        )
        # (B, heads, L, width / heads)
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.answer(seen.transpose(1, 2).flatten(2))
        return x + self.linear(self.before_linear(x))


class LanguageModel(nn.Module):
    """A transformer decoder; the embedding of a token is also what its score is computed with."""

    def __init__(self, length: int, width: int = 768, layers: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.place = nn.Embedding(length, width)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)
        self.body = nn.Sequential(
            *(Decoder(width, heads) for _ in range(layers)), nn.LayerNorm(width)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores (B, L, VOCABULARY) of tokens (B, L)."""
        x = self.token(ids) + self.place.weight[: ids.shape[1]]
        return nn.functional.linear(self.body(x), self.token.weight)


resnet50 = Step(make_resnet50)
vit_b16 = Step(make_vit_b16)
gpt2 = LanguageStep(LanguageModel)
"""GPT-2 small (Radford et al. 2019, table 2): 124 million parameters for blocks of 1,024."""

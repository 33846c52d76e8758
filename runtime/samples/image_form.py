"""How an image becomes an array."""

from __future__ import annotations

from dataclasses import dataclass

CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}
"""Channels of each color mode of Keras."""


@dataclass(frozen=True, slots=True)
class ImageForm:
    """How an image becomes an array; the names are those of Keras."""

    image_size: tuple[int, int] = (256, 256)
    color_mode: str = "rgb"
    interpolation: str = "bilinear"
    crop_to_aspect_ratio: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return (*self.image_size, CHANNELS[self.color_mode])

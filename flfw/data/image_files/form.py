"""Form that a user's own pictures are brought to: size, how it is reached, colour, and what happens to damaged ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

if TYPE_CHECKING:  # every client process imports this file, and few of them decode
    from PIL.Image import Image

Fit = Literal["auto", "crop", "letterbox", "stretch"]
Colour = Literal["auto", "grey", "rgb"]


@final
@dataclass(frozen=True)
class ImageFormat:
    """Form of the inputs that are made of pictures.

    Attributes:
        side: height and width that the network, or the user, wants; None: any. Pictures are stretched to it.
        size: height and width that pictures are brought to first; None: they keep theirs.
        fit: how a picture of another shape gets that size. crop: it is scaled until it covers the size, and what stands
            out at both ends is cut off; letterbox: it is scaled until it fits in, with black bars beside it; stretch:
            both lengths are scaled by themselves; auto: crop, or stretch where a federation names the size.
        colour: grey: one channel; rgb: three; auto: grey if all pictures are grey.
        skip_damaged: whether pictures that cannot be read are left out, instead of refused.
    """

    side: int | None = None
    size: tuple[int, int] | None = None
    fit: Fit = "auto"
    colour: Colour = "auto"
    skip_damaged: bool = False

    def channels(self, all_grey: bool) -> int:
        """Return the number of channels of the inputs."""
        return {"grey": 1, "rgb": 3, "auto": 1 if all_grey else 3}[self.colour]

    @property
    def needed(self) -> tuple[int, int] | None:
        """Height and width of the last size that a picture is brought to; None: it keeps its own."""
        return self.size or (None if self.side is None else (self.side, self.side))

    def applied(self, image: Image) -> Image:
        """Return a picture in this form's size, resized bilinearly, antialiased."""
        from PIL import Image as Pillow
        from PIL import ImageOps

        how = Pillow.Resampling.BILINEAR
        if self.size is not None:
            width_first = self.size[1], self.size[0]
            if self.fit == "stretch":
                image = image.resize(width_first, how)
            elif self.fit == "letterbox":
                image = ImageOps.pad(image, width_first, how, color=0)
            else:
                image = ImageOps.fit(image, width_first, how)
        return image if self.side is None else image.resize((self.side, self.side), how)

    def least(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height to which a picture may be reduced roughly, before it is brought to the form.

        They are twice of what is needed at least, so that the antialiasing has something to average.
        """
        if self.needed is None:
            return width, height
        scales = self.needed[1] / width, self.needed[0] / height
        scale = 2 * max(scales)
        return min(width, -int(-width * scale // 1)), min(height, -int(-height * scale // 1))

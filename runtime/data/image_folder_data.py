"""Images in folders, one folder for each class, decoded when they are read."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.digest import Digest
from holdfast.runtime.data.array_data import probed_ids
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.data import SampleIds, Samples

_CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}
"""Channels of each color mode of Keras."""

_MODES = ("int", "binary", "categorical", None)
_SUBSETS = ("training", "validation", None)
_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")


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
        return (*self.image_size, _CHANNELS[self.color_mode])


class ImageFolderData:
    """Images in the folders of a directory, labelled by the names of these folders.

    Images and labels are those of ``keras.utils.image_dataset_from_directory``: float32 from 0
    to 255, and int32 class numbers.  Every worker decodes its own samples only.

    Exact on resume because an image is found by its place in the sorted list of files, and the
    files may not change during a run: their names and sizes, and some files, are compared at
    each start.

    Args:
        directory: a folder for each class, with images in it at any depth.
        label_mode: "int", "binary" (a column of 0 and 1), "categorical" (one-hot), or None for
            images without labels, in any folders.
        class_names: the folders in the order of their numbers, None for sorted names.
        validation_split: the share of the images that the subset "validation" holds.
        subset: "training" or "validation", if there is a ``validation_split``.
        seed: of the order that is divided into subsets, as in Keras.
        form: keywords ``image_size``, ``color_mode`` ("rgb", "rgba" or "grayscale"),
            ``interpolation`` and ``crop_to_aspect_ratio``.

    Raises:
        ProgramError: there is no image, or an argument makes no sense.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        label_mode: str | None = "int",
        class_names: Sequence[str] | None = None,
        validation_split: float | None = None,
        subset: str | None = None,
        seed: int = 0,
        **form: Any,
    ) -> None:
        self._form = _form_of(form)
        _check_one_of("label_mode", label_mode, _MODES)
        _check_one_of("subset", subset, _SUBSETS)
        if (subset is None) != (validation_split is None):
            raise ProgramError("ImageFolderData needs subset and validation_split together")
        self._root = Path(directory)
        self._label_mode = label_mode
        self.class_names = _classes(self._root, label_mode, class_names)
        files = list(_images(self._root, self.class_names))
        if validation_split is not None:
            files = _divided(files, (validation_split, subset), seed)
        if not files:
            raise ProgramError(
                f"{self._root} holds no image ({', '.join(_ENDINGS)}) in the folders "
                f"{', '.join(self.class_names) or '(none)'}"
            )
        self._files = [path for path, _ in files]
        self._labels = np.array([label for _, label in files], np.int32)

    def __len__(self) -> int:
        return len(self._files)

    def fingerprint(self) -> str:
        """Return a digest of all names, sizes and labels, and of some files, made once."""
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        digest = Digest()
        digest.update(f"{self._form} {self._label_mode} {self.class_names}".encode())
        for path, label in zip(self._files, self._labels.tolist(), strict=True):
            size = (self._root / path).stat().st_size
            digest.update(f"{path} {size} {label}\n".encode())
        for number in probed_ids(len(self)).tolist():
            digest.update((self._root / self._files[number]).read_bytes())
        return digest.hexdigest()

    def read(self, ids: SampleIds) -> Samples:
        """Return these images, float32 of the shape (ids, height, width, channels), and labels.

        Raises:
            ProgramError: a file cannot be read, or is no image.
        """
        from holdfast.runtime.data.tf_decoding import decoded_images

        paths = [str(self._root / self._files[number]) for number in ids.tolist()]
        form = self._form
        decoding = (form.shape, form.interpolation, form.crop_to_aspect_ratio)
        return decoded_images(paths, decoding), self._targets(ids)

    def _targets(self, ids: SampleIds) -> npt.NDArray[Any] | None:
        labels = self._labels[ids]
        match self._label_mode:
            case "binary":
                return labels.astype(np.float32)[:, None]
            case "categorical":
                return np.eye(len(self.class_names), dtype=np.float32)[labels]
            case None:
                return None
        return labels


def _form_of(given: dict[str, Any]) -> ImageForm:
    try:
        form = ImageForm(**given)
    except TypeError as error:
        raise ProgramError(f"ImageFolderData: {error}") from error
    _check_one_of("color_mode", form.color_mode, tuple(_CHANNELS))
    return form


def _check_one_of(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        words = ", ".join(map(repr, known))
        raise ProgramError(f"ImageFolderData({name}={value!r}): give one of {words}")


def _classes(root: Path, label_mode: str | None, asked: Sequence[str] | None) -> tuple[str, ...]:
    """Return the folders of the classes; without labels the root itself is the only one."""
    try:
        folders = sorted(p.name for p in root.iterdir() if p.is_dir() and p.name[0] != ".")
    except OSError as error:
        raise ProgramError(f"{root} cannot be listed: {error}") from error
    missing = sorted(set(asked or ()) - set(folders))
    if missing:
        raise ProgramError(
            f"class_names has {', '.join(missing)}, but {root} has the folders "
            f"{', '.join(folders) or '(none)'}"
        )
    if label_mode is None:
        return ("",)
    classes = tuple(folders if asked is None else asked)
    if label_mode == "binary" and len(classes) != 2:
        raise ProgramError(
            f'label_mode="binary" needs two classes, and {root} has {len(classes)}: '
            f"{', '.join(classes) or '(none)'}"
        )
    return classes


def _images(root: Path, classes: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield the paths below ``root`` and the class numbers, class by class, sorted as by Keras."""
    for number, name in enumerate(classes):
        for folder, _, names in sorted(os.walk(root / name)):
            for file in sorted(names):
                if file.lower().endswith(_ENDINGS):
                    yield os.path.relpath(os.path.join(folder, file), root), number


def _divided(
    files: list[tuple[str, int]], part: tuple[float, str | None], seed: int
) -> list[tuple[str, int]]:
    """Return one of two subsets; files and seed alone decide which images are in it.

    ``part`` is the share of validation, and which subset is wanted.
    """
    share, subset = part
    held_out = int(share * len(files))
    if not 0 < held_out < len(files):
        raise ProgramError(
            f"validation_split={share} leaves {held_out} of {len(files)} images for validation: "
            "each subset needs at least one"
        )
    order = list(range(len(files)))
    np.random.RandomState(seed).shuffle(order)
    chosen = order[-held_out:] if subset == "validation" else order[:-held_out]
    return [files[number] for number in chosen]

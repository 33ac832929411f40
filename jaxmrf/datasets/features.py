"""Digits and tagged artists, whose causes a factor model looks for, read from a folder of the user.

The data of Courville, Eck & Bengio, "An infinite factor model hierarchy via a noisy-or mechanism",
NIPS 2009, section 5, as near as they can be had; they are too large to ship with the package.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["ArtistTags", "HandwrittenThrees", "artist_tags", "handwritten_threes"]


class HandwrittenThrees(NamedTuple):
    """Pictures of the digit 3, ink from 0 to 1.

    Attributes:
        train: The first threes of the training file of MNIST, float32 "pictures 28 28".
        test: The first threes of its test file.
    """

    train: np.ndarray
    test: np.ndarray


class ArtistTags(NamedTuple):
    """How often listeners gave each of 100 tags to an artist.

    Attributes:
        train: Users who gave the tag, as a percentage of those who gave the artist's most frequent
            one, rounded; int32 0..100, "artists tags".
        test: The same of other artists.
        tags: Names of the tags.
        train_artists: Names of the artists.
        test_artists: Names of the others.
    """

    train: np.ndarray
    test: np.ndarray
    tags: tuple[str, ...]
    train_artists: tuple[str, ...]
    test_artists: tuple[str, ...]


def handwritten_threes(folder: str | Path) -> HandwrittenThrees:
    """1000 training and 500 test pictures of the digit 3.

    Licence: MNIST (LeCun, Cortes & Burges) is freely distributed, under CC BY-SA 3.0 by most
    accounts; derived from NIST special databases 3 and 7.

    Args:
        folder: Folder that holds ``mnist3/mnist3.npz``, with uint8 arrays ``train`` and ``test``.

    Returns:
        The pictures.

    Raises:
        ValueError: If the file is not there.
    """
    stored = _load("handwritten_threes", folder, "mnist3/mnist3.npz")
    return HandwrittenThrees(
        *(stored[name].astype(np.float32) / 255 for name in HandwrittenThrees._fields)
    )


def artist_tags(folder: str | Path) -> ArtistTags:
    """100 tags of 1000 training and 600 test artists.

    These are not the counts of Last.fm itself that the paper used, but the same kind of numbers
    made from the tag assignments of 1892 users.

    Licence: HetRec 2011 Last.fm 2k data, made available by Last.fm (http://www.lastfm.com) for
    non-commercial use; collected by Cantador, Brusilovsky & Kuflik.

    Args:
        folder: Folder that holds ``lastfm/lastfm_artist_tag.npz``, with arrays ``norm100``,
            ``train``, ``test``, ``artist`` and ``tag``.

    Returns:
        The counts and their names.

    Raises:
        ValueError: If the file is not there.
    """
    stored = _load("artist_tags", folder, "lastfm/lastfm_artist_tag.npz")
    counts, artists = stored["norm100"].astype(np.int32), stored["artist"]
    rows = stored["train"], stored["test"]
    names = (tuple(values.tolist()) for values in (stored["tag"], *(artists[row] for row in rows)))
    return ArtistTags(*(counts[row] for row in rows), *names)


def _load(caller: str, folder: str | Path, name: str) -> dict[str, np.ndarray]:
    path = Path(folder) / name
    if not path.is_file():
        raise ValueError(
            f"{caller}: expected a file {name} in the folder, got none in {str(folder)!r}; "
            "pass the folder of the data sets"
        )
    with np.load(path) as stored:
        return dict(stored)

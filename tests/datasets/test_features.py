import numpy as np
import pytest

from jaxmrf.datasets import artist_tags, handwritten_threes


@pytest.fixture
def folder(tmp_path, rng):
    """Small files of the layout that the loaders read."""
    for name in ("mnist3", "lastfm"):
        (tmp_path / name).mkdir()
    pictures = {
        name: rng.integers(256, size=(n, 28, 28)) for name, n in (("train", 3), ("test", 2))
    }
    pictures = {name: values.astype(np.uint8) for name, values in pictures.items()}
    np.savez(tmp_path / "mnist3" / "mnist3.npz", **pictures, train_index=np.arange(3))
    counts = rng.integers(101, size=(6, 4)).astype(np.uint8)
    np.savez(
        tmp_path / "lastfm" / "lastfm_artist_tag.npz",
        norm100=counts,
        train=np.array([4, 0, 1], np.int16),
        test=np.array([2, 5], np.int16),
        artist=np.array(list("abcdef")),
        tag=np.array(["rock", "pop", "jazz", "folk"]),
    )
    return tmp_path


def test_pictures_are_scaled_from_bytes_to_the_unit_interval(folder):
    pictures = handwritten_threes(folder)
    stored = np.load(folder / "mnist3" / "mnist3.npz")
    assert pictures.train.shape == (3, 28, 28) and pictures.test.shape == (2, 28, 28)
    assert pictures.train.dtype == np.float32
    np.testing.assert_allclose(pictures.train * 255, stored["train"], rtol=1e-6)
    np.testing.assert_allclose(pictures.test * 255, stored["test"], rtol=1e-6)


def test_artists_are_split_by_the_stored_rows(folder):
    data = artist_tags(folder)
    counts = np.load(folder / "lastfm" / "lastfm_artist_tag.npz")["norm100"]
    np.testing.assert_array_equal(data.train, counts[[4, 0, 1]])
    np.testing.assert_array_equal(data.test, counts[[2, 5]])
    assert data.train.dtype == np.int32
    assert data.train_artists == ("e", "a", "b") and data.test_artists == ("c", "f")
    assert data.tags == ("rock", "pop", "jazz", "folk")


@pytest.mark.parametrize("load", [handwritten_threes, artist_tags])
def test_folder_without_the_file_raises(load, tmp_path):
    with pytest.raises(ValueError, match=f"{load.__name__}: expected a file .*npz.*; pass the"):
        load(tmp_path)


def test_threes_of_the_data_folder_are_those_described(shared_data):
    pictures = handwritten_threes(shared_data)
    assert pictures.train.shape == (1000, 28, 28) and pictures.test.shape == (500, 28, 28)
    assert pictures.train.max() == 1 and pictures.train.min() == 0
    flat = pictures.train.reshape(1000, -1)
    assert len(np.unique(flat, axis=0)) == 1000
    assert not {row.tobytes() for row in flat} & {
        row.tobytes() for row in pictures.test.reshape(500, -1)
    }


def test_tags_of_the_data_folder_are_those_described(shared_data):
    data = artist_tags(shared_data)
    assert data.train.shape == (1000, 100) and data.test.shape == (600, 100)
    assert data.train.sum() == 417_795  # the README's
    assert np.all(data.train.max(axis=1) == 100) and data.test.min() == 0
    assert len(set(data.tags)) == 100
    assert not set(data.train_artists) & set(data.test_artists)

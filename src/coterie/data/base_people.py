"""Base sets that say whom each row comes from: letters by writer, motion by subject."""

from __future__ import annotations

import numpy as np

from coterie.data.base_files import (
    as_float32,
    as_int64,
    check_file,
    find_file,
    read_npz_arrays,
    within,
)
from coterie.data.base_set import Base
from coterie.data.federation import rng
from coterie.data.shares import places


def unipen() -> Base:
    """Handwritten 0-9 A-Z a-z of 307 writers, 28×28 grey, 85,884 train and 17,027 test images."""
    path = find_file("unipen_chars", "unipen_chars.npz")
    arrays = read_npz_arrays(
        path,
        images="bytes 3",
        labels="integer 1",
        writer="integer 1",
        is_test="integer 1",
        writer_code="text 1",
        classes="text 1",
    )
    images, y, writer, is_test = (arrays[k] for k in ("images", "labels", "writer", "is_test"))
    classes = tuple(arrays["classes"].tolist())
    writers = tuple(arrays["writer_code"].tolist())
    is_image = images.dtype == np.uint8 and images.shape[1:] == (28, 28)
    check_file(
        path,
        [
            (is_image, f"images are {images.dtype} {images.shape}"),
            (len(images) == len(y) == len(writer) == len(is_test), "its arrays differ in length"),
            (within(y, len(classes)), f"a label is not one of {len(classes)} classes"),
            (within(writer, len(writers)), f"a writer is not one of {len(writers)}"),
            (len({*writers}) == len(writers), "two writers have the same code"),
            ({*np.unique(is_test)} == {0, 1}, "is_test is not 0 and 1"),
        ],
    )
    return with_keys("unipen", images, y, classes, (writer, writers), is_test == 1)


def har() -> Base:
    """Phone motion of 30 subjects in 6 activities, 9 signals × 128 steps, 7,977 train, 2,322 test.

    Windows of one recording (a chain) overlap by half, so that whole chains are for training or for
    tests: of a subject's chains of one activity, in a random order that is always the same, every
    fourth is for tests. Rows that a search holds out of training are drawn by window, though, and
    so flatter what has learnt a window's neighbours.
    """
    path = find_file("uci_har", "uci_har.npz")
    arrays = read_npz_arrays(
        path,
        signals="float 2",
        start="integer 1",
        y="integer 1",
        subject="integer 1",
        chain="integer 1",
        activities="text 1",
    )
    signals, start, y, subject = (arrays[k] for k in ("signals", "start", "y", "subject"))
    labels = tuple(arrays["activities"].tolist())
    finite = len(signals) == 9 and bool(np.isfinite(signals).all())
    lengths = {len(start), len(y), len(subject), len(arrays["chain"])}
    check_file(
        path,
        [
            (finite, "signals are not 9 rows of finite numbers"),
            (len(lengths) == 1 and lengths != {0}, "its arrays differ in length"),
            (within(start, signals.shape[1] - 127), "a window lies outside the signals"),
            (within(y, len(labels)), f"a label is not one of {len(labels)} activities"),
            (within(subject, 1000), "a subject's number is not from 0 to 999"),
        ],
    )
    _, first, chain = np.unique(arrays["chain"], return_index=True, return_inverse=True)
    stratum = subject * len(labels) + y  # subject and activity
    by_start = start.argsort()
    overlap = np.diff(start[by_start]) < 128
    check_file(
        path,
        [
            (
                (stratum[first][chain] == stratum).all(),
                "a chain has several subjects or activities",
            ),
            (not np.diff(chain[by_start])[overlap].any(), "windows of different chains overlap"),
        ],
    )
    is_test = (places(stratum[first], rng(0, "har")) % 4 == 3)[chain]
    windows = signals[:, start[:, None] + np.arange(128)].swapaxes(0, 1).astype(np.float32)
    subjects, key = np.unique(subject, return_inverse=True)
    names = tuple(f"subject-{number:02}" for number in subjects.tolist())
    return with_keys("har", windows, y, labels, (key, names), is_test)


def with_keys(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    labels: tuple[str, ...],
    keys: tuple[np.ndarray, tuple[str, ...]],
    is_test: np.ndarray,
) -> Base:
    """A set whose rows have keys, (the number of each row's key, all names), in its two parts."""
    key, names = keys
    return Base(
        name=name,
        x_train=as_float32(x[~is_test]),
        y_train=as_int64(y[~is_test]),
        x_test=as_float32(x[is_test]),
        y_test=as_int64(y[is_test]),
        classes=len(labels),
        labels=labels,
        keys=names,
        key_train=as_int64(key[~is_test]),
        key_test=as_int64(key[is_test]),
    )

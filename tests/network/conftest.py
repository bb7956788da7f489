"""Many small networks: the hash of rows, which is slow on purpose, is a quick one here."""

from __future__ import annotations

import hashlib

import pytest


@pytest.fixture(autouse=True)
def quick_hash(monkeypatch):
    quick = lambda fingerprint, salt: hashlib.sha256(f"{fingerprint} {salt}".encode()).hexdigest()
    monkeypatch.setattr("coterie.network.site.hash_with_salt", quick)


@pytest.fixture
def place(tmp_path):
    """The app of `coterie network new`, on a Grid in this process."""
    from fake_grid import Place

    return Place(tmp_path)

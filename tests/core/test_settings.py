"""Declaring settings: limits that do not exist are refused, with the name to use instead."""

from __future__ import annotations

import pytest

import coterie as ct


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("least", "has no limit 'least' any more: write ge="),
        ("choice", r"unknown limit of setting\(\) 'choice': did you mean 'choices'"),
        ("minimum", r"unknown limit of setting\(\) 'minimum': there are: choices, ge, gt"),
    ],
)
def test_an_unknown_limit_is_refused(limit: str, message: str) -> None:
    with pytest.raises(ct.CoterieError, match=message):
        ct.setting(1, "a number", **{limit: 0})

"""Shakespeare by speaking role: each client predicts the next character of one role's lines."""

from __future__ import annotations

import gzip
import zlib

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.data.base_files import damaged, find_file
from coterie.data.federation import Federation, Ragged, rng
from coterie.data.spec import maker


@maker
def shakespeare(
    clients: int = 30,
    samples: int | None = None,
    length: int = 40,
    test_share: float = 0.25,
    least: int = 40,
    backwards: bool = False,
    seed: int = 0,
    unseen: int = 0,
) -> Federation:
    """Next characters in plays of Shakespeare, with one client per speaking role.

    A row is a window of a role's lines; its target is the same window one character later. Windows
    do not overlap, and the last ones of a role are its test rows. The true groups are unknown,
    unless `backwards` plants two. The text is that of Tiny Shakespeare, the file
    tinyshakespeare/input.txt.gz in the folder COTERIE_DATA.

    Args:
        clients: Number of roles, drawn at random.
        samples: Maximum of training rows per role, its first ones; default: no maximum.
        length: Characters in a row.
        test_share: Share of each role's rows that is held out.
        least: Roles with fewer rows are dropped.
        backwards: Whether every second role's lines run from the last character to the first, which
            plants two groups.
        seed: Seed of the random draws.
        unseen: Number of random roles that never train.

    Example:
        >>> fed = shakespeare(clients=3)  # doctest: +SKIP
        >>> fed.kind, fed.row_shape, fed.classes  # doctest: +SKIP
        ('tokens', (40,), 65)
    """
    if length < 1 or least < 2 or (samples is not None and samples < 1):
        raise CoterieError(
            f"length={length}, least={least}, samples={samples} is out of range",
            "use at least 1, 2 and 1",
        )
    if not 0 < test_share < 1:
        raise CoterieError(f"the test share must be above 0 and below 1, not {test_share}.")
    roles = read_roles()
    alphabet = sorted(set("".join(roles.values())))
    code = {letter: i for i, letter in enumerate(alphabet)}
    enough = sorted(role for role, text in roles.items() if (len(text) - 1) // length >= least)
    if not 1 <= clients <= len(enough):
        raise CoterieError(
            f"{clients} clients are out of range: {len(enough)} of {len(roles)} roles have at "
            f"least {least} rows of {length} characters",
            "use 1 to that many clients, or another least",
        )
    chosen = sorted(rng(seed, "shakespeare", "roles").permutation(enough)[:clients].tolist())
    train: list[tuple[Tensor, Tensor]] = []
    test: list[tuple[Tensor, Tensor]] = []
    for i, role in enumerate(chosen):
        letters = np.array([code[letter] for letter in roles[role]])
        if backwards and i % 2:
            letters = letters[::-1].copy()
        x, y = windows(torch.from_numpy(letters), length)
        held = round(len(x) * test_share)
        kept = len(x) - held
        train.append((x[:kept][:samples], y[:kept][:samples]))
        test.append((x[kept:], y[kept:]))
    fed = Federation(
        tuple(chosen),
        concatenate(train),
        concatenate(test),
        "tokens",
        len(alphabet),
        labels=tuple(alphabet),
        truth=torch.arange(clients) % 2 if backwards else None,
    )
    return fed.with_unseen(unseen, seed)


def read_roles() -> dict[str, str]:
    """Return the lines of each speaking role."""
    path = find_file("tinyshakespeare", "input.txt.gz")
    try:
        text = gzip.decompress(path.read_bytes()).decode("ascii")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as why:
        raise damaged(path, str(why)) from None
    roles: dict[str, str] = {}
    for speech in text.split("\n\n"):
        role, _, lines = speech.strip().partition(":\n")
        if lines:
            roles[role] = roles.get(role, "") + lines + "\n"
    if not roles:
        raise damaged(path, "it has no speeches")
    return roles


def windows(letters: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return windows x [n, length] that do not overlap, and y, one letter later."""
    count = (len(letters) - 1) // length
    x, y = letters[: count * length], letters[1 : count * length + 1]
    return x.view(count, length), y.view(count, length)


def concatenate(pairs: list[tuple[Tensor, Tensor]]) -> Ragged:
    """Return the rows of all clients."""
    xs, ys = zip(*pairs)
    return Ragged(torch.cat(xs), torch.cat(ys), torch.tensor([len(x) for x in xs]))

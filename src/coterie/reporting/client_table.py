"""Every client by name, as a table and in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.metrics import METRICS
from coterie.reporting.clients import WORST, ClientScores, EachClient, FewRows, Wins
from coterie.reporting.membership import format_group
from coterie.reporting.portrait import MOST
from coterie.reporting.rows import FEW
from coterie.reporting.text import (
    NOTHING,
    TextTable,
    format_gain,
    format_score,
    join_names,
    metric_name,
)

NAMED = 8  # clients with few test rows that are named
MARK = "†"


def clients_table(result: EachClient) -> TextTable:
    """Lay out one row per client; columns of which nothing is known are left out."""
    shown_first = 1 + len(result.baselines)  # the method and its baselines, then the gains
    balanced = "balanced"
    if len(result.methods) > 1:
        balanced = f"balanced, {result.method}"
    head = [
        "client",
        "group",
        "how sure",
        "training rows",
        "test rows",
        "commonest class",
        *result.methods[:shown_first],
        balanced,
        *(f"gain over {label}" for label in result.baselines),
        *result.methods[shown_first:],
    ]
    rows = []
    for client in result.clients:
        scores = [format_score(score, result.metric) for score in client.scores]
        gains = [format_gain(gain, result.metric) for gain in client.gains]
        cells = [client.name, *row_cells(client), format_known(client.commonest)]
        cells += [*scores[:shown_first], format_known(client.balanced)]
        rows.append([*cells, *gains, *scores[shown_first:]])
    unknown = unknown_columns(result, balanced_at=6 + shown_first)
    return TextTable(without(head, unknown), [without(row, unknown) for row in rows])


def unknown_columns(result: EachClient, balanced_at: int) -> list[int]:
    """Return the positions of columns of which nothing is known of any client."""
    columns: dict[int, Sequence[float | None]] = {
        1: [client.group for client in result.clients],
        2: [client.sure for client in result.clients],
        3: [client.train_rows for client in result.clients],
        4: [client.test_rows for client in result.clients],
        5: [client.commonest for client in result.clients],
        balanced_at: [client.balanced for client in result.clients],
    }
    return [place for place, values in columns.items() if all(v is None for v in values)]


def format_known(share: float | None) -> str:
    """Write a share with three decimals; a dash where it is unknown."""
    if share is None:
        return NOTHING
    return f"{share:.3f}"


def row_cells(client: ClientScores) -> list[str]:
    """Write a client's group, how sure it is, and its rows; few test rows have a mark."""
    group = ""
    if client.group is not None:
        group = format_group(client.group)
    test_rows = str(client.test_rows)
    if client.test_rows is not None and 0 < client.test_rows < FEW:
        test_rows += f" {MARK}"
    sure = NOTHING
    if client.sure is not None:
        sure = f"{100 * client.sure:.0f} %"
    return [group, sure, str(client.train_rows), test_rows]


def without(cells: list[str], positions: Sequence[int]) -> list[str]:
    """Leave out the cells at these positions."""
    return [cell for i, cell in enumerate(cells) if i not in positions]


def describe_clients(result: EachClient) -> str:
    """Say how to read the table."""
    score = f"Test {metric_name(result.metric)} of every client on its own test rows"
    if result.baselines:
        score += f"; the gain is that of {result.method}, above 0 where it is better"
    sentences = [f"{score}. A click on a heading sorts by it."]
    if any(client.commonest is not None for client in result.clients):
        sentences.append(
            "Commonest class: the share of the client's test rows that are of their commonest "
            "class; who always guesses that is right as often, with a balanced accuracy of one "
            "over the number of classes."
        )
    if result.count > MOST:
        sentences.append(
            f"Of the {result.count:,} clients, the {WORST} that do worst under {result.method} "
            "are shown."
        )
    if result.seeds > 1:
        sentences.append(
            f"From the lowest seed of each method; that of {result.method} is {result.seed}."
        )
    return " ".join(sentences)


def describe_few_rows(few: FewRows, metric: str) -> str:
    """Say what to think of scores that a few rows decide; "" where there are none."""
    if not few.clients:
        return ""
    who = f"{len(few.clients):,} of the {few.of:,} clients"
    if len(few.clients) <= NAMED:
        who = join_names([f"{name} ({rows})" for name, rows in few.clients])
    why = "one unusual row decides it"
    if METRICS[metric].unit == "share":
        least = min(rows for _, rows in few.clients)
        points = f"{100 / least:.0f} percentage points"
        why = f"with {least}, one row more or less moves it by {points}"
    return (
        f"{MARK} Fewer than {FEW} test rows: {who}. Such a score is a hint, not a measurement: "
        f"{why}."
    )


def describe_wins(wins: Wins, result: EachClient) -> str:
    """Say for how many clients a method is better than a baseline; of several seeds, with which."""
    of = wins.better + wins.worse + wins.equal
    start = "Compared"
    if result.seeds > 1:
        start = f"With seed {result.seed} alone, compared"
    return (
        f"{start} with {wins.baseline}, {result.method} is better for {wins.better} of {of} "
        f"clients, worse for {wins.worse} and equal for {wins.equal}."
    )


def describe_client_notes(result: EachClient) -> list[str]:
    """List what there is to say about the clients' scores, a sentence each."""
    sentences = [describe_few_rows(result.few_rows, result.metric)]
    sentences += [describe_wins(wins, result) for wins in result.wins]
    if result.clients[0].train_rows is None:
        sentences.append("Training rows are not counted, as they are not at hand.")
    if result.other_rows:
        whose = "its"
        if len(result.other_rows) > 1:
            whose = "their"
        others = join_names(result.other_rows)
        sentences.append(f"Not shown, as {whose} clients had other rows: {others}.")
    return [sentence for sentence in sentences if sentence]

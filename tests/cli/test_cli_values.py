"""Values that do not fit, in flags and in the config file, and how errors show them."""

from __future__ import annotations

import pytest
from test_cli_errors import refused

from coterie.core.errors import MAX_VALUE, shorten_values


@pytest.mark.parametrize(
    "text, words",
    [
        ("roudns = 2", ["unknown key in c.toml 'roudns'", "'rounds'"]),
        ("config = 'd.toml'", ["unknown key in c.toml 'config'"]),
        ("[fedavg]\nlearning = 2", ["unknown key in c.toml 'fedavg.learning'"]),
        ("mu = 2", ["unknown key in c.toml 'mu'"]),
        ("[data]\nangels = [0, 90]", ["unknown option", "'angels'", "'angles'"]),
        ("local_steps = 2\nlocal-steps = 3", ["local_steps occurs twice in c.toml"]),
        ("rounds = \n", ["c.toml is not valid TOML", "line 1"]),
        ("rounds = 2.5", ["rounds in c.toml is 2.5: it must be a whole number."]),
        ("rounds = true", ["rounds in c.toml is true: it must be a whole number."]),
        ("rounds = [1, 2]", ["rounds in c.toml is [1, 2]: it must be a whole number."]),
        ("lr = nan", ["lr in c.toml is nan: it must be a number."]),
        ("[fedavg]\nlr = 'fast'", ["fedavg.lr in c.toml is 'fast': it must be a number."]),
        ("dtype = 7", ["dtype is '7': it must be one of float32, float64."]),
        ("label = 1.5", ["label in c.toml is 1.5: it must be text in quotes."]),
        ("label = ['a', 'b']", ["label in c.toml is ['a', 'b']: it must be text in quotes."]),
        ("fill = true", ["fill in c.toml is true: it must be one of mean, median."]),
        ("weighted = 'yes'", ["weighted in c.toml is 'yes': it must be true or false."]),
        ("batch = 1.5", ["batch in c.toml is 1.5: it must be a whole number or none."]),
        ("label = 1979-05-27", ['label in c.toml is a date or a time: write "1979-05-27".']),
        ("[data]\nlabel = 07:32:00", ["data.label in c.toml is a date or a time"]),
        ("[data]\nangles = [[0], [90]]", ["data.angles in c.toml is a table or a nested list"]),
        (
            "[[data]]\nangles = 0",
            ["data in c.toml is a table or a nested list: give plain values."],
        ),
        ("[fedavg.lr]\nx = 1", ["fedavg.lr", "table"]),
    ],
)
def test_config_file(coterie, tmp_path, text, words):
    (tmp_path / "c.toml").write_text(text)
    refused(coterie("run fedavg --config c.toml"), *words)


@pytest.mark.parametrize(
    "command",
    [
        "run fedavg --lr {}",
        "run fedavg --model {}",
        "run fedavg --data {}",
        "run fedavg --data.angles {}",
        "run fedavg --{} 1",
        "run {}",
        "{}",
        "run ifca --clusters 2 --init {}",
        "search fedavg --over {}",
        "search fedavg --over lr={}",
    ],
)
def test_long_values_are_shown_in_part(coterie, command):
    long = "begin" + "x" * 500 + "end"
    outcome = coterie(command.format(long))
    refused(outcome, "begin", "xend")
    assert "x" * MAX_VALUE not in outcome.err


def test_only_values_are_shortened():
    sentence = "the client's rows are " + "many and " * 20 + "so are the group's: write 'a' or 'b'."
    assert shorten_values(sentence) == sentence
    assert (
        shorten_values(f"rounds is -{'9' * 500}: no.") == f"rounds is -{'9' * 59}…{'9' * 20}: no."
    )
    assert shorten_values(f"""x is "it's {"y" * 90}".""").count("y") < 80

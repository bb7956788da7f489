"""Names that nodes say themselves, as records of Flower."""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

from coterie.engines.codec import BadBytes

NAME = "name"  # the action of the question, and the record of the answer
LONGEST_NAME = 200  # characters


def name_record(name: str) -> RecordDict:
    """A site's name as the content of a message."""
    return RecordDict({NAME: ConfigRecord({NAME: name})})


def read_name(content: RecordDict) -> str:
    """The name in a message; BadBytes if there is none."""
    record = content.get(NAME)
    name = record.get(NAME) if isinstance(record, ConfigRecord) else None
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise BadBytes("its answer is not a name")
    return name

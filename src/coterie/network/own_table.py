"""A site's own table: what it says of it before the first round, and what its owner allows."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from coterie.data.curvature import curvatures
from coterie.data.site_table import SiteTable
from coterie.data.table_options import TableOptions
from coterie.network.packets import DataTerms, Described, Fit, Fitted, Hello, RunTerms, Terms
from coterie.network.replies import BAD_TABLE, Faults
from coterie.network.terms import (
    Built,
    Owner,
    build,
    encoded_rows,
    read_schema,
    run_options,
    site_task,
    table_options,
)
from coterie.runs.start import as_asked, model_fingerprint


class OwnTable:
    """The table of a site."""

    def __init__(self, client: str, file: Path, owner: Owner, faults: Faults) -> None:
        self.client = client
        self.file = file
        self.owner = owner
        self.faults = faults
        self.read_file = lru_cache(maxsize=1)(self._read_file)

    def describe(self, order: Hello) -> Described:
        """What would leave this site before the first round."""
        self.check_owner(order.data, order.run)
        options = run_options(order.run)
        table = self.read(order.data)
        with self.faults.told_as(BAD_TABLE):
            description = table.describe()
            rows = as_asked(table.index, options).roster.rows
        return Described(description, {name: int(n[0]) for name, n in rows._asdict().items()})

    def check_table(self, data: DataTerms) -> None:
        """Fail where the table cannot be described."""
        table = self.read(data)
        with self.faults.told_as(BAD_TABLE):
            table.describe()

    def check_owner(self, data: DataTerms, run: RunTerms) -> None:
        """Refuse a run that asks for more than this site's owner allows."""
        if self.owner.label not in (None, data.label):
            raise PermissionError(f"its owner allows the label {self.owner.label} alone")
        fewest = min(data.min_rows_to_report, run.min_rows_to_report)
        if fewest < self.owner.min_rows_to_report:
            raise PermissionError(
                f"its owner allows min_rows_to_report of {self.owner.min_rows_to_report} or more, "
                f"not {fewest}"
            )

    def read(self, data: DataTerms) -> SiteTable:
        """The table, read anew only where its file has changed."""
        options = table_options(data)
        with self.faults.told_as(BAD_TABLE):
            about = self.file.stat()  # a table that its owner has mended is read again
            return self.read_file(options, about.st_size, about.st_mtime_ns)

    def _read_file(self, options: TableOptions, size: int, changed: int) -> SiteTable:
        return SiteTable(self.client, self.file, options)

    def fit(self, order: Fit) -> Fitted:
        """Encode the rows by the schema of all sites; the model, and how steep its loss is."""
        self.check_owner(order.data, order.run)
        options = run_options(order.run)
        schema = read_schema(order.schema)
        table = self.read(order.data)
        with self.faults.told_as(BAD_TABLE):
            fed = encoded_rows(table, schema, options)
        task = site_task(fed.roster, order.model, options, self.owner)
        curvature = None
        if order.curvature:
            curvature = float(curvatures(fed.train, fed.kind, order.batch)[0])
        return Fitted(model_fingerprint(task), curvature)

    def build(self, terms: Terms) -> Built:
        """The rows, and what the site needs to answer questions of a run about them."""
        table = self.read(terms.data)
        with self.faults.told_as(BAD_TABLE):
            return build(terms, table, self.owner)

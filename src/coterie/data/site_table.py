"""The table of one site: what it tells of itself, and its rows once a schema is agreed on."""

from __future__ import annotations

from pathlib import Path

from coterie.data.client_table import tables_of_frames
from coterie.data.description import Description, describe_table
from coterie.data.encoding import assemble, rows_by_client
from coterie.data.federation import Federation
from coterie.data.frames import split_tables
from coterie.data.readings import refuse_gaps
from coterie.data.schema import Schema
from coterie.data.table_options import TableOptions
from coterie.data.tables import read_table


class SiteTable:
    """A site's table, read and split as `folder:` reads and splits one of its files."""

    def __init__(self, client: str, file: Path, options: TableOptions) -> None:
        self.client = client
        self.options = options
        frame = read_table(file, options.categories)
        tables, self.index = split_tables(tables_of_frames({client: frame}), options)
        self.table = tables[client].without(options.left_out)

    def describe(self) -> Description:
        """The columns in a few numbers each; a table that cannot be used is refused.

        Quantiles may be cells, so they leave the site only where medians fill missing cells. Else
        the mean stands for them, which leaves anyway.
        """
        options = self.options
        description = describe_table(
            self.table,
            options.label,
            options.kind,
            options.categories,
            train=rows_by_client(self.index.train)[0],
            min_rows_to_report=options.min_rows_to_report,
        )
        if options.fill is None:
            refuse_gaps(self.table.without([options.label]))
        if options.fill != "median":
            for column in description["columns"].values():
                if column.get("count"):
                    column["quantiles"] = [column["mean"]]
        return description

    def encode(self, schema: Schema) -> Federation:
        """A federation of this site alone."""
        return assemble({self.client: self.table}, self.index, schema)

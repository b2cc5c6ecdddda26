"""Every cell of a table names its column, whatever the cells hold."""

from __future__ import annotations

from markupsafe import Markup

from colmlm.api.console.views import with_columns

HEAD = '<table><thead><tr><th class="num">Fact</th><th><b>At &amp; "by"</b></th></tr></thead>'


def test_cells_name_the_column_that_they_stand_in() -> None:
    table = Markup(HEAD + '<tbody>\n<tr><td class="num">1</td><td>&lt;td&gt;</td></tr>\n</tbody></table>')
    assert with_columns(table) == HEAD + (
        '<tbody>\n<tr><td data-column="Fact" class="num">1</td>'
        '<td data-column="At &amp; &#34;by&#34;">&lt;td&gt;</td></tr>\n</tbody></table>'
    )


def test_a_row_with_more_cells_than_headings_loses_none() -> None:
    table = Markup(
        "<table><thead><tr><th>A</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>"
    )
    assert '<td data-column="A">1</td><td>2</td>' in with_columns(table)

"""The cells of a table in Markdown, as docs/tables.py writes it."""


def cells(table: str) -> list[dict[str, str]]:
    """Each row by the headings of its columns; lines beside the table are left out."""
    header, _, *rows = (
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in table.split("\n")
        if line.startswith("|")
    )
    return [dict(zip(header, row, strict=True)) for row in rows]

"""Small PDFs, written by hand."""

from __future__ import annotations

from collections.abc import Sequence


def pdf(*pages: Sequence[str], title: str = "", encrypted: bool = False) -> bytes:
    """Makes pages with these lines; with `encrypted` it has a password that nobody knows."""
    kids = range(6, 6 + 2 * len(pages), 2)
    bodies = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{' '.join(f'{kid} 0 R' for kid in kids)}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< /Title ({title}) >>",
        f"<< /Filter /Standard /V 1 /R 2 /O <{'00' * 32}> /U <{'11' * 32}> /P -4 >>",
    ]
    for kid, lines in zip(kids, pages, strict=True):
        content = "BT /F1 12 Tf 72 720 Td 14 TL " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
        bodies.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {kid + 1} 0 R"
            " /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        bodies.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    written, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(bodies, start=1):
        offsets.append(len(written))
        written += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    lock = "/Encrypt 5 0 R /ID [<00><00>]" if encrypted else ""
    return (
        written
        + (
            f"xref\n0 {len(bodies) + 1}\n0000000000 65535 f \n{table}"
            f"trailer\n<< /Size {len(bodies) + 1} /Root 1 0 R /Info 4 0 R {lock} >>\nstartxref\n{len(written)}\n%%EOF"
        ).encode()
    )

"""Small Word documents and books, packed by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from zipfile import ZIP_DEFLATED, ZipFile

TYPES = """<?xml version="1.0" encoding="UTF-8"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>
<Override PartName="/word/document.xml"
 ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>"""
RELATIONS = """<?xml version="1.0" encoding="UTF-8"?>
<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship
 Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
 Target="word/document.xml"/></Relationships>"""
STYLES = """<?xml version="1.0" encoding="UTF-8"?>
<w:styles xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">
<w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/></w:style></w:styles>"""
DOCUMENT = (
    '<?xml version="1.0" encoding="UTF-8"?>'
    '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>%s</w:body></w:document>'
)
CONTAINER = """<?xml version="1.0"?><container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">
<rootfiles><rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""
PACKAGE = """<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>%s</dc:title></metadata>
<manifest>%s</manifest><spine>%s</spine></package>"""


def packed(files: Mapping[str, str]) -> bytes:
    """Makes an archive of these files."""
    written = BytesIO()
    with ZipFile(written, "w", ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return written.getvalue()


def docx(paragraphs: Sequence[str], *, heading: str = "", table: Sequence[Sequence[str]] = ()) -> bytes:
    """Makes a Word document with a heading of the first level, paragraphs and a table."""
    style = '<w:pPr><w:pStyle w:val="Heading1"/></w:pPr>'
    body = f"<w:p>{style}<w:r><w:t>{heading}</w:t></w:r></w:p>" if heading else ""
    body += "".join(_paragraph(text) for text in paragraphs)
    rows = "".join(
        f"<w:tr>{''.join(f'<w:tc>{_paragraph(cell)}</w:tc>' for cell in row)}</w:tr>" for row in table
    )
    body += f"<w:tbl>{rows}</w:tbl>" if rows else ""
    return packed(
        {
            "[Content_Types].xml": TYPES,
            "_rels/.rels": RELATIONS,
            "word/document.xml": DOCUMENT % body,
            "word/styles.xml": STYLES,
        }
    )


def epub(title: str, pages: Mapping[str, str], *, beside: Sequence[str] = (), **more: str) -> bytes:
    """Makes a book of these pages, in their order; those `beside` are no part of what is read in a row."""
    items = "".join(
        f'<item id="p{n}" href="{name}" media-type="application/xhtml+xml"/>' for n, name in enumerate(pages)
    )
    spine = "".join(
        f'<itemref idref="p{n}" linear="{"no" if name in beside else "yes"}"/>'
        for n, name in enumerate(pages)
    )
    return packed(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": CONTAINER,
            "OEBPS/book.opf": PACKAGE % (title, items, spine),
        }
        | {f"OEBPS/{name}": page for name, page in pages.items()}
        | more
    )


def _paragraph(text: str) -> str:
    return f'<w:p><w:r><w:t xml:space="preserve">{text}</w:t></w:r></w:p>'

"""Documents: the texts that facts were read from."""

from __future__ import annotations

from litestar import get
from sqlalchemy.orm import Session

from api.errors import PROBLEMS
from api.ports import FromPorts
from api.rights import Right, needs
from api.schemas import DocumentText, PathId
from kb.errors import DocumentNotFound
from kb.tables import Document


@get("/documents/{document_id:int}", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def read_document(ports: FromPorts, document_id: PathId) -> DocumentText:
    """A document's text, and where it came from."""
    with Session(ports.kb.engine) as session:
        document = session.get(Document, document_id)
        if document is None:
            raise DocumentNotFound(document_id)
        return DocumentText(
            document_id=document.id,
            corpus=document.corpus,
            external_id=document.external_id,
            title=document.title,
            uri=document.uri,
            licence=document.licence,
            revision=document.revision,
            sha256=document.sha256,
            text=document.text,
        )

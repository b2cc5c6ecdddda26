"""The tables of misses, which are grouped into a work list and hold no text, and of what people said of outputs."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, Integer, func, text
from sqlalchemy.orm import Mapped, mapped_column

from colmlm.kb.tables.declarative import Content, Name, TableRow, Word

miss_states = ("open", "dismissed", "solved")
thumbs = ("up", "down")


class MissGroupRow(TableRow):
    """Misses whose queries are near that of lookup `ordinal` of output `generation_id`, with what was decided.

    `asked` counts them, and `wrong` those of them that are outputs which somebody called wrong. `seq` is the change
    that decided, and `fact_id` the fact that it named.
    """

    __tablename__ = "miss_group"
    __table_args__ = (
        CheckConstraint(f"state IN {miss_states}", name="state"),
        Index("miss_group_asked_idx", "state", "asked", "id"),
        Index("miss_group_last_at_idx", "state", "last_at", "id"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    state: Mapped[Word] = mapped_column(server_default=text("'open'"))
    asked: Mapped[int]
    wrong: Mapped[int]
    last_at: Mapped[datetime]
    generation_id: Mapped[int]
    ordinal: Mapped[int] = mapped_column(Integer)
    fact_id: Mapped[int | None]
    seq: Mapped[int | None]


class MissRow(TableRow):
    """A lookup that found nothing; with the ordinal -1 an output that somebody called wrong."""

    __tablename__ = "miss"
    __table_args__ = (
        Index("miss_group_id_idx", "group_id", "generation_id"),
        Index("miss_at_idx", "at"),
    )

    generation_id: Mapped[int] = mapped_column(
        ForeignKey("generation.id", ondelete="CASCADE"), primary_key=True
    )
    ordinal: Mapped[int] = mapped_column(Integer, primary_key=True)
    group_id: Mapped[int | None] = mapped_column(ForeignKey("miss_group.id"))
    at: Mapped[datetime] = mapped_column(server_default=func.now())


class FeedbackRow(TableRow):
    """What somebody said of an output: a thumb, and perhaps a comment and the value that is right."""

    __tablename__ = "feedback"
    __table_args__ = (
        CheckConstraint(f"thumb IN {thumbs}", name="thumb"),
        Index("feedback_one_each_key", "generation_id", "actor", "on_behalf_of", unique=True),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    generation_id: Mapped[int] = mapped_column(ForeignKey("generation.id", ondelete="CASCADE"))
    thumb: Mapped[Word]
    comment: Mapped[Content | None]
    value: Mapped[Content | None]
    actor: Mapped[Name]
    on_behalf_of: Mapped[Content] = mapped_column(server_default=text("''"))
    at: Mapped[datetime] = mapped_column(server_default=func.now())

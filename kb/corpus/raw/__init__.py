"""Raw documents: reads texts, pages, books and tables of records as documents without facts.

It has the shape of the other readers of corpora (`kb.corpus.squad`, `kb.corpus.parquet`): each gives `Parsed` documents
and refusals, and one bad file does not end the others. A parser is imported when a file needs it.
"""

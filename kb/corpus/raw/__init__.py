"""Raw documents: reads text, Markdown, HTML, PDF and JSON Lines files as documents without facts.

It has the shape of the other readers of corpora (`kb.corpus.squad`, `kb.corpus.parquet`): each gives `Parsed` documents
and refusals, and one bad file does not end the others. A parser is imported when a file needs it.
"""

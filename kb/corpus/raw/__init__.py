"""Raw documents: files of text, Markdown, HTML, PDF and JSON Lines as documents without facts.

The same shape as the other readers of corpora (kb/corpus/squad.py, kb/corpus/parquet.py): each gives `Parsed` documents
and refusals, and one bad file never ends the others. The parsers are imported when a file needs them.
"""

"""Files of documents, read and written: the annotated format, Parquet, SQuAD; raw text, Markdown, HTML and PDF."""

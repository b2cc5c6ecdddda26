"""Documents with facts as files: the annotated format, Parquet, SQuAD."""

"""The measurements that `colmlm evaluate paper` runs to repeat the paper's tables, and the page of results."""

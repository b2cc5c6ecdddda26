"""The paper's tables at our size: what `colmlm evaluate paper` runs and how its results are shown."""

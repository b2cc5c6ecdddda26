"""The paper row by row, with what is shown of it, and its tables at this model's size: a Makefile and its data."""

"""Documents as organisations have them, with questions: `python -m colmlm.lab.wild` builds the folders to ask about."""

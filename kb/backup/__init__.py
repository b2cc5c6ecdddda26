"""Backups: writes a knowledge base to one file, checks that file, and restores it together with a newer log."""

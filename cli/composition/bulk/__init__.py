"""Bulk work on Ray: keys, marks and questions of many documents, by processes of one machine or of a cluster."""

"""Commands of auditors: the log, traces and impact."""

"""Webhooks: send the changes of the log to receivers, in order and signed, and to no inner network unasked."""

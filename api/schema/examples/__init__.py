"""Examples of every request and response for the OpenAPI document, about one small base.

They are instances of the types themselves, so that the type checker refuses an example that no longer fits.
"""

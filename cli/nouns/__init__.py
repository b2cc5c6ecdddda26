"""What commands ask of a knowledge base, here or elsewhere: a protocol for each noun, in the records of `kb`.

`KnowledgeBase` and its verb classes meet them in process (`cli.local`), clients of the API over HTTP (`cli.remote`).
A command takes a `Base` and does not know which it is.
"""

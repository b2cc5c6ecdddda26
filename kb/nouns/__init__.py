"""What a knowledge base can be asked for, here or elsewhere: a protocol for each noun, in the records of `kb`.

`KnowledgeBase` and what the command line plugs in meet them in process, `api.client` over HTTP.
"""

"""The nouns of a knowledge base as protocols, one for each noun, whether the base is on this machine or a server's.

`KnowledgeBase` and the nouns of `cli.bases.local` implement them in process, `api.client` over HTTP.
"""

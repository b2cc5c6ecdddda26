"""Protocols of what a base and its generator are asked for, a noun each, be it on this machine or a server's.

`KnowledgeBase` and the nouns of `cli.bases.local` implement them in process, `api.client` over HTTP.
"""

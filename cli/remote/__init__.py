"""A knowledge base behind its API: what a decoder on another machine looks facts up in."""

"""The console: web pages for people, on the same verbs as the API."""

"""OpenAI's API on this knowledge base: completions, chat, responses, embeddings and models, with citations."""

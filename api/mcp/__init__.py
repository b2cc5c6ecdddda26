"""The Model Context Protocol on a knowledge base: tools and resources for assistants, over stdio and HTTP."""

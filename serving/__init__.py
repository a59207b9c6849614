"""Models behind HTTP: a Ray Serve application with OpenAI's and text-embeddings-inference's interfaces."""

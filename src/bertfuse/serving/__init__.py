"""Models behind HTTP: fronts that speak OpenAI's and text-embeddings-inference's interfaces, engines that compute."""

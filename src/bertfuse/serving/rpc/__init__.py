"""gRPC, by text-embeddings-inference's interface."""

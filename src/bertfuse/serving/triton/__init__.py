"""Model repositories for NVIDIA's Triton Inference Server, and the Python model in them."""

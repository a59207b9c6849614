"""Shape rules: what they say of random models, against what ONNX Runtime computes."""

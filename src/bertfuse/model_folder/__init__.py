"""Model folders as Hugging Face's tools lay them out: where the ONNX files lie, configuration, tokenizer."""

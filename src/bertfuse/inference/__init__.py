"""Texts in, vectors, scores and labels out: a model folder with its tokenizer, pooling, activation and labels.

Arguments and results are those of sentence-transformers and of transformers' pipelines. Needs onnxruntime, tokenizers
and NumPy; neither torch nor transformers.
"""

from bertfuse.lazy import lazy

_EXPORTS = {
    "Encoder": "encoder",
    "SparseEncoder": "sparse_encoder",
    "MultiVectorEncoder": "multi_vector_encoder",
    "Reranker": "reranker",
    "Classifier": "classifier",
    "Tagger": "tagger",
    "MaskFiller": "mask_filler",
    "QuestionAnswerer": "question_answerer",
}

__all__ = list(_EXPORTS)
__getattr__ = lazy(__name__, _EXPORTS)

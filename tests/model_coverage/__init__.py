"""What is fused of every model, head and kind of ONNX file: measured, tabulated, and held against the last table.

python -m tests.model_coverage               measure every cell, write coverage.json and docs/coverage.md
python -m tests.model_coverage --only mpnet  measure the cells whose name holds that, print them, write nothing
"""
